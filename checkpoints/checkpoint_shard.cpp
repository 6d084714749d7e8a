#include "checkpoints/checkpoint_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <system_error>

#include "data/hdf5/hdf5_file.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/read_file.h"

namespace jforge {

namespace {

constexpr std::array<const char*, 3> kVectorNames = {"parameter", "first_moment", "second_moment"};
/// Between two slices of this size the HDF5 lock is free, so that the training thread's reads are
/// not held up.
constexpr std::size_t kWriteElements = (std::size_t{16} << 20) / sizeof(float);

std::string dataset_name(const std::string& tensor, ShardVector vector) {
  return tensor + ":" + kVectorNames[static_cast<std::size_t>(vector)];
}

std::size_t count_elements(std::span<const ShardSlice> slices) {
  std::int64_t total = 0;
  for (const ShardSlice& slice : slices) {
    total += slice.size();
  }
  return static_cast<std::size_t>(total);
}

/// Tensor number, begin and end of every slice, flattened [slices, 3].
std::vector<std::int64_t> slice_rows(std::span<const CheckpointSlice> slices) {
  std::vector<std::int64_t> rows;
  for (const CheckpointSlice& slice : slices) {
    rows.insert(rows.end(), {static_cast<std::int64_t>(slice.tensor), slice.begin, slice.end});
  }
  return rows;
}

void write_vector(Hdf5Writer& file, ShardVector vector, std::span<const float> values,
                  std::span<const CheckpointTensor> tensors, std::span<const ShardSlice> slices) {
  std::size_t used = 0;
  for (const ShardSlice& slice : slices) {
    const std::string name = dataset_name(tensors[slice.entry].name, vector);
    const std::span<const float> part =
        values.subspan(used, static_cast<std::size_t>(slice.size()));
    used += part.size();
    file.create<float>(name, slice.size());
    for (std::size_t done = 0; done < part.size(); done += kWriteElements) {
      file.write_slice<float>(name, static_cast<std::int64_t>(done),
                              part.subspan(done, std::min(kWriteElements, part.size() - done)));
    }
  }
}

void expect_owner(const Hdf5Reader& file, const CheckpointManifest& manifest,
                  const CheckpointShard& shard) {
  const auto expect_integer = [&](const char* name, std::int64_t expected) {
    if (const std::int64_t found = file.integer_attribute(name); found != expected) {
      throw DataError(fmt::format("{} is a foreign shard: its {} is {}, the manifest says {}",
                                  file.path().string(), name, found, expected));
    }
  };
  expect_integer("format_version", CheckpointManifest::kFormatVersion);
  expect_integer("round", manifest.state.round);
  expect_integer("step", manifest.state.step);
  expect_integer("world_size", manifest.world_size);
  expect_integer("rank", shard.rank);
  if (file.text_attribute("nonce") != manifest.nonce) {
    throw DataError(
        fmt::format("{} is a foreign shard: it was written by another run", file.path().string()));
  }
  if (file.read<std::int64_t>("slices") != slice_rows(shard.slices)) {
    throw DataError(
        fmt::format("{} holds other slices than the manifest says", file.path().string()));
  }
}

}  // namespace

CheckpointShard write_shard(const std::filesystem::path& directory, const ShardOwner& owner,
                            std::span<const CheckpointTensor> tensors,
                            std::span<const ShardSlice> slices, const ShardValues& values) {
  const std::size_t elements = count_elements(slices);
  const bool moments = !values.first_moment.empty() || !values.second_moment.empty();
  expect(values.parameter.size() == elements, "a shard's weights do not fill its slices");
  expect(!moments ||
             (values.first_moment.size() == elements && values.second_moment.size() == elements),
         "a shard's moments do not fill its slices");
  CheckpointShard shard;
  shard.rank = owner.rank;
  shard.file = shard_file_name(owner.rank, owner.world_size);
  for (const ShardSlice& slice : slices) {
    shard.slices.push_back({slice.entry, slice.tensor_begin, slice.tensor_end});
  }
  publish_with(directory / shard.file, [&](const std::filesystem::path& temporary) {
    // Unsealed: the manifest holds size and checksum of the whole file.
    Hdf5Writer file(temporary, false);
    file.attribute("format_version", std::int64_t{CheckpointManifest::kFormatVersion});
    file.attribute("round", owner.round);
    file.attribute("step", owner.step);
    file.attribute("world_size", std::int64_t{owner.world_size});
    file.attribute("rank", std::int64_t{owner.rank});
    file.attribute("nonce", std::string_view(owner.nonce));
    file.write<std::int64_t>("slices", slice_rows(shard.slices));
    write_vector(file, ShardVector::parameter, values.parameter, tensors, slices);
    fault_point("checkpoint.data");
    if (moments) {
      write_vector(file, ShardVector::first_moment, values.first_moment, tensors, slices);
      write_vector(file, ShardVector::second_moment, values.second_moment, tensors, slices);
    }
    file.close();
    // Hashed before the rename: a file that cannot be read back is never published.
    shard.bytes = std::filesystem::file_size(temporary);
    shard.hash = hash_file(temporary);
    fault_point("checkpoint.fsync");
  });
  fault_point("checkpoint.rename");
  return shard;
}

void verify_shard(const std::filesystem::path& directory, const CheckpointShard& shard) {
  const std::filesystem::path path = directory / shard.file;
  await_file(path);
  std::error_code reason;
  const std::uint64_t bytes = std::filesystem::file_size(path, reason);
  if (reason) {
    throw DataError(fmt::format("{} cannot be read: {}", path.string(), reason.message()));
  }
  if (bytes != shard.bytes) {
    throw DataError(fmt::format("{} is damaged or foreign: it has {} bytes, the manifest says {}",
                                path.string(), bytes, shard.bytes));
  }
  if (const std::uint64_t hash = hash_file(path); hash != shard.hash) {
    throw DataError(
        fmt::format("{} is damaged or foreign: its checksum is {}, the manifest says {}",
                    path.string(), hash_hex(hash), hash_hex(shard.hash)));
  }
}

void read_shard(const std::filesystem::path& directory, const CheckpointManifest& manifest,
                std::size_t shard_number, std::span<const ShardRead> reads) {
  const CheckpointShard& shard = manifest.shards[shard_number];
  std::optional<Hdf5Reader> file;
  for (const ShardRead& read : reads) {
    const std::int64_t read_end = read.begin + static_cast<std::int64_t>(read.target.size());
    for (const CheckpointSlice& slice : shard.slices) {
      const std::int64_t begin = std::max(read.begin, slice.begin);
      const std::int64_t end = std::min(read_end, slice.end);
      if (slice.tensor != read.tensor || begin >= end) {
        continue;
      }
      if (!file) {
        file.emplace(directory / shard.file, SealCheck::none);
        expect_owner(*file, manifest, shard);
      }
      const std::string name = dataset_name(manifest.tensors[read.tensor].name, read.vector);
      if (file->size(name) != slice.end - slice.begin) {
        throw DataError(fmt::format("{}: {} has another size than the manifest says",
                                    file->path().string(), name));
      }
      file->read_slice<float>(name, begin - slice.begin,
                              read.target.subspan(static_cast<std::size_t>(begin - read.begin),
                                                  static_cast<std::size_t>(end - begin)));
    }
  }
}

}  // namespace jforge
