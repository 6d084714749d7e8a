#pragma once

/// Checkpoints of a tiny model, as if written by any number of ranks.

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoints/checkpoint_manifest.h"
#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/checkpoint_shard.h"
#include "checkpoints/checkpoint_writer.h"
#include "checkpoints/shard_slices.h"
#include "checkpoints/shard_writer.h"
#include "data/hdf5/hdf5_file.h"
#include "model/transformer/parameter_table.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_config.h"

namespace jforge::test {

/// Differs by tensor, vector and seed; exact in float32.
inline float state_value(std::size_t tensor, std::int64_t element, ShardVector vector, int seed) {
  const auto mixed = static_cast<std::int64_t>(tensor) * 7919 + element * 31 +
                     static_cast<std::int64_t>(vector) * 104729 + seed * 1299709;
  return static_cast<float>(mixed % 1000003) / 64.0F;
}

struct SimulatedState {
  explicit SimulatedState(int world, int seed)
      : table(tiny_config(), world), weights(static_cast<std::size_t>(table.flat_size())) {
    const auto size = static_cast<std::size_t>(shard_vector_size(table));
    for (int rank = 0; rank < world; ++rank) {
      first.emplace_back(size, 0.0F);
      second.emplace_back(size, 0.0F);
      for (const ShardSlice& slice : shard_slices(table, rank)) {
        for (std::int64_t i = 0; i < slice.size(); ++i) {
          const std::int64_t element = slice.tensor_begin + i;
          const auto place = static_cast<std::size_t>(slice.shard_begin + i);
          weights[static_cast<std::size_t>(slice.flat_begin + i)] =
              state_value(slice.entry, element, ShardVector::parameter, seed);
          first.back()[place] = state_value(slice.entry, element, ShardVector::first_moment, seed);
          second.back()[place] =
              state_value(slice.entry, element, ShardVector::second_moment, seed);
        }
      }
    }
  }
  ParameterTable table;
  std::vector<float> weights;
  std::vector<std::vector<float>> first;
  std::vector<std::vector<float>> second;
};

inline CheckpointState training_state(std::int64_t round, std::int64_t step) {
  CheckpointState state;
  state.round = round;
  state.step = step;
  state.phase = "train";
  state.optimizer_updates = step;
  state.identity = {{"model", "abc"}, {"run.seed", "42"}};
  state.cursors = "{\"sample\":" + std::to_string(step * 8) + "}";
  return state;
}

inline CheckpointManifest simulate_manifest(const SimulatedState& state, std::int64_t round,
                                            std::int64_t step, const std::string& nonce) {
  CheckpointManifest manifest;
  manifest.state = training_state(round, step);
  manifest.world_size = state.table.shard_count();
  manifest.nonce = nonce;
  manifest.tensors = checkpoint_tensors(state.table);
  return manifest;
}

struct PackedShard {
  PackedShard(const SimulatedState& state, Rank rank) : slices(shard_slices(state.table, rank)) {
    for (const ShardSlice& slice : slices) {
      const auto append = [&](std::vector<float>& target, const std::vector<float>& source,
                              std::int64_t begin) {
        target.insert(target.end(), source.begin() + begin, source.begin() + begin + slice.size());
      };
      append(vectors[0], state.weights, slice.flat_begin);
      append(vectors[1], state.first[static_cast<std::size_t>(rank)], slice.shard_begin);
      append(vectors[2], state.second[static_cast<std::size_t>(rank)], slice.shard_begin);
    }
  }
  std::vector<ShardSlice> slices;
  std::array<std::vector<float>, 3> vectors;  ///< by ShardVector
};

inline CheckpointShard write_shard(const std::filesystem::path& directory, const ShardOwner& owner,
                                   std::span<const ShardSlice> slices, const ShardValues& values) {
  ShardWriter writer(directory, owner, slices, values);
  while (writer.advance()) {
  }
  return writer.shard();
}

/// Returns the table's flat vector of weights.
inline std::vector<float> read_weights(const Checkpoint& checkpoint, const ParameterTable& table) {
  const ParameterTable::Range all{0, table.flat_size()};
  std::vector<float> flat(static_cast<std::size_t>(table.flat_size()), -1.0F);
  SliceReader(checkpoint, table).read(ShardVector::parameter, {&all, 1}, flat);
  return flat;
}

inline std::vector<float> read_shard(const Checkpoint& checkpoint, const ParameterTable& table,
                                     int shard, ShardVector vector) {
  std::vector<float> values(static_cast<std::size_t>(shard_vector_size(table)), -1.0F);
  SliceReader(checkpoint, table).read_shard(vector, shard, values);
  return values;
}

inline CheckpointShard simulate_shard(const std::filesystem::path& directory,
                                      const SimulatedState& state,
                                      const CheckpointManifest& manifest, Rank rank) {
  const PackedShard packed(state, rank);
  return write_shard(
      directory,
      {manifest.state.round, manifest.state.step, manifest.world_size, rank, manifest.nonce},
      packed.slices, {packed.vectors[0], packed.vectors[1], packed.vectors[2]});
}

/// Format version 1: a dataset with a checksum for each slice and vector.
inline CheckpointShard simulate_shard_of_version_1(const std::filesystem::path& directory,
                                                   const SimulatedState& state,
                                                   const CheckpointManifest& manifest, Rank rank) {
  constexpr std::array kNames = {":parameter", ":first_moment", ":second_moment"};
  const PackedShard packed(state, rank);
  CheckpointShard shard;
  shard.rank = rank;
  shard.file = shard_file_name(rank, manifest.world_size);
  std::vector<std::int64_t> rows;
  for (const ShardSlice& slice : packed.slices) {
    shard.slices.push_back({slice.entry, slice.tensor_begin, slice.tensor_end});
    rows.insert(rows.end(),
                {static_cast<std::int64_t>(slice.entry), slice.tensor_begin, slice.tensor_end});
  }
  Hdf5Writer file(directory / shard.file, false);
  file.attribute("format_version", std::int64_t{1});
  file.attribute("round", manifest.state.round);
  file.attribute("step", manifest.state.step);
  file.attribute("world_size", std::int64_t{manifest.world_size});
  file.attribute("rank", std::int64_t{rank});
  file.attribute("nonce", std::string_view(manifest.nonce));
  file.write<std::int64_t>("slices", rows);
  for (std::size_t v = 0; v < kNames.size(); ++v) {
    std::span<const float> rest = packed.vectors[v];
    for (const ShardSlice& slice : packed.slices) {
      const auto size = static_cast<std::size_t>(slice.size());
      file.write<float>(manifest.tensors[slice.entry].name + kNames[v], rest.first(size));
      rest = rest.subspan(size);
    }
  }
  file.close();
  shard.bytes = std::filesystem::file_size(directory / shard.file);
  shard.hash = hash_file(directory / shard.file);
  return shard;
}

inline std::filesystem::path simulate_checkpoint(const std::filesystem::path& root,
                                                 std::int64_t round, std::int64_t step, int world,
                                                 int seed, const std::string& nonce = "n1",
                                                 int version = CheckpointManifest::kFormatVersion) {
  const SimulatedState state(world, seed);
  CheckpointManifest manifest = simulate_manifest(state, round, step, nonce);
  manifest.version = version;
  const std::filesystem::path directory = root / checkpoint_directory_name(round, step);
  make_directory(directory);
  for (int rank = 0; rank < world; ++rank) {
    manifest.shards.push_back(version == 1
                                  ? simulate_shard_of_version_1(directory, state, manifest, rank)
                                  : simulate_shard(directory, state, manifest, rank));
  }
  commit_checkpoint(directory, manifest);
  return directory;
}

inline void flip_byte(const std::filesystem::path& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  ASSERT_NE(byte, EOF) << path;
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 0x10));
}

}  // namespace jforge::test
