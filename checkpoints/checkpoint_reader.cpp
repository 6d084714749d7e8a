#include "checkpoints/checkpoint_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoints/checkpoint_shard.h"
#include "checkpoints/shard_slices.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/error.h"

namespace jforge {

namespace {

/// Why a directory is not a valid checkpoint, or the checkpoint.
struct Examination {
  std::optional<Checkpoint> checkpoint;
  std::string reason;
};

/// First complaint about the files numbered first, first + stride, …; empty when there is none.
std::string verify_files(const Checkpoint& checkpoint, std::size_t first, std::size_t stride) {
  for (std::size_t i = first; i < checkpoint.manifest.shards.size(); i += stride) {
    try {
      verify_shard(checkpoint.directory, checkpoint.manifest.shards[i]);
    } catch (const DataError& error) {
      return error.what();
    }
  }
  return {};
}

Examination examine(const std::filesystem::path& directory) {
  try {
    Checkpoint checkpoint{directory, read_manifest(directory)};
    std::string reason = verify_files(checkpoint, 0, 1);
    if (reason.empty()) {
      return {std::move(checkpoint), {}};
    }
    return {std::nullopt, std::move(reason)};
  } catch (const DataError& error) {
    return {std::nullopt, error.what()};
  }
}

/// Collective: rank 0 reads the manifest, the ranks share the files, all learn the first complaint.
Examination examine(const Communicator& comm, const std::filesystem::path& directory) {
  std::string manifest;
  std::string reason;
  static_cast<void>(agree(comm, false, [&] {
    if (comm.rank() == 0) {
      try {
        manifest = read_manifest(directory).to_json();
      } catch (const DataError& error) {
        reason = error.what();
      }
    }
  }));
  reason = broadcast_text(comm, reason, 0);
  if (!reason.empty()) {
    return {std::nullopt, reason};
  }
  manifest = broadcast_text(comm, manifest, 0);
  std::optional<Checkpoint> checkpoint;
  std::string complaint;
  static_cast<void>(agree(comm, false, [&] {
    checkpoint =
        Checkpoint{directory, CheckpointManifest::from_json(manifest, directory / kManifestName)};
    complaint = verify_files(*checkpoint, static_cast<std::size_t>(comm.rank()),
                             static_cast<std::size_t>(comm.size()));
  }));
  for (const std::string& text : gather_texts(comm, complaint, 0)) {
    reason = reason.empty() ? text : reason;
  }
  reason = broadcast_text(comm, reason, 0);
  if (!reason.empty()) {
    return {std::nullopt, reason};
  }
  return {std::move(checkpoint), {}};
}

/// Names of the candidate directories, newest first, as rank 0 sees them: every rank walks the same
/// list.
std::vector<std::string> list_names(const Communicator& comm, const std::filesystem::path& root) {
  std::string joined;
  static_cast<void>(agree(comm, false, [&] {
    if (comm.rank() == 0) {
      for (const CheckpointDirectory& directory : list_checkpoint_directories(root)) {
        joined += directory.path.filename().string() + "\n";
      }
    }
  }));
  joined = broadcast_text(comm, joined, 0);
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin < joined.size();) {
    const std::size_t end = joined.find('\n', begin);
    names.push_back(joined.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

bool take(Examination&& examination, CheckpointSearch& search) {
  if (examination.checkpoint) {
    search.newest = std::move(examination.checkpoint);
    return true;
  }
  search.skipped.push_back(std::move(examination.reason));
  return false;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void read_all(const Checkpoint& checkpoint, const std::vector<ShardRead>& reads) {
  for (std::size_t shard = 0; shard < checkpoint.manifest.shards.size(); ++shard) {
    read_shard(checkpoint.directory, checkpoint.manifest, shard, reads);
  }
}

}  // namespace

CheckpointSearch find_newest_checkpoint(const std::filesystem::path& root) {
  CheckpointSearch search;
  for (const CheckpointDirectory& directory : list_checkpoint_directories(root)) {
    if (take(examine(directory.path), search)) {
      break;
    }
  }
  return search;
}

CheckpointSearch find_newest_checkpoint(const Communicator& comm,
                                        const std::filesystem::path& root) {
  CheckpointSearch search;
  for (const std::string& name : list_names(comm, root)) {
    if (take(examine(comm, root / name), search)) {
      break;
    }
  }
  return search;
}

Checkpoint open_checkpoint(const std::filesystem::path& directory) {
  Examination examination = examine(directory);
  if (!examination.checkpoint) {
    throw DataError(
        fmt::format("{} is not a valid checkpoint: {}", directory.string(), examination.reason));
  }
  return std::move(*examination.checkpoint);
}

Checkpoint open_checkpoint(const Communicator& comm, const std::filesystem::path& directory) {
  Examination examination = examine(comm, directory);
  if (!examination.checkpoint) {
    throw DataError(
        fmt::format("{} is not a valid checkpoint: {}", directory.string(), examination.reason));
  }
  return std::move(*examination.checkpoint);
}

void expect_same_identity(const Checkpoint& checkpoint, const Identity& identity,
                          const std::vector<std::string>& accepted) {
  expect_same_identity(checkpoint.directory.string(), checkpoint.manifest.state.identity, identity,
                       accepted);
}

void expect_same_tensors(const Checkpoint& checkpoint, const ParameterTable& table) {
  const std::vector<CheckpointTensor> expected = checkpoint_tensors(table);
  const std::vector<CheckpointTensor>& found = checkpoint.manifest.tensors;
  const std::string where = checkpoint.directory.string();
  for (std::size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
    if (i >= found.size()) {
      throw DataError(
          fmt::format("checkpoint {} lacks tensor {} of the model", where, expected[i].name));
    }
    if (i >= expected.size()) {
      throw DataError(fmt::format("checkpoint {} holds tensor {}, which the model has not", where,
                                  found[i].name));
    }
    if (found[i] != expected[i]) {
      throw DataError(fmt::format("checkpoint {} holds tensor {} {} where the model has {} {}",
                                  where, found[i].name, shape_text(found[i].shape),
                                  expected[i].name, shape_text(expected[i].shape)));
    }
  }
}

void read_shard_vectors(const Checkpoint& checkpoint, const ParameterTable& table, int shard,
                        std::span<float> weights, std::span<float> first_moment,
                        std::span<float> second_moment) {
  expect_same_tensors(checkpoint, table);
  const auto size = static_cast<std::size_t>(shard_vector_size(table));
  const bool moments = !first_moment.empty() || !second_moment.empty();
  expect(weights.size() == size, "shard vector of weights has a wrong size");
  expect(!moments || (first_moment.size() == size && second_moment.size() == size),
         "shard vector of moments has a wrong size");
  if (moments && !checkpoint.manifest.has_moments) {
    throw DataError(fmt::format("checkpoint {} holds weights only, no optimizer state",
                                checkpoint.directory.string()));
  }
  std::vector<ShardRead> reads;
  const auto want = [&](ShardVector vector, std::span<float> target) {
    std::fill(target.begin(), target.end(), 0.0F);
    for (const ShardSlice& slice : shard_slices(table, shard)) {
      reads.push_back({slice.entry, slice.tensor_begin, vector,
                       target.subspan(static_cast<std::size_t>(slice.shard_begin),
                                      static_cast<std::size_t>(slice.size()))});
    }
  };
  want(ShardVector::parameter, weights);
  if (moments) {
    want(ShardVector::first_moment, first_moment);
    want(ShardVector::second_moment, second_moment);
  }
  read_all(checkpoint, reads);
}

void read_weights(const Checkpoint& checkpoint, const ParameterTable& table, TensorView flat) {
  expect_same_tensors(checkpoint, table);
  expect_shape(flat, {table.flat_size()}, "weights");
  const std::span<float> values = flat.span<float>();
  std::fill(values.begin(), values.end(), 0.0F);
  std::vector<ShardRead> reads;
  for (std::size_t i = 0; i < table.entries().size(); ++i) {
    const ParameterEntry& entry = table.entries()[i];
    reads.push_back({i, 0, ShardVector::parameter,
                     values.subspan(static_cast<std::size_t>(entry.offset),
                                    static_cast<std::size_t>(entry.shape.elements()))});
  }
  read_all(checkpoint, reads);
}

}  // namespace jforge
