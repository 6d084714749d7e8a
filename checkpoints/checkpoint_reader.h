#pragma once

/// Finds checkpoints and reads them at any world size.

#include <cstdint>
#include <filesystem>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoints/checkpoint_manifest.h"
#include "checkpoints/checkpoint_shard.h"
#include "model/transformer/parameter_table.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// A verified checkpoint.
struct Checkpoint {
  std::filesystem::path directory;
  CheckpointManifest manifest;
};

struct CheckpointSearch {
  std::optional<Checkpoint> newest;
  std::vector<std::string> skipped;  ///< Errors of newer directories, newest first.
};

/// Returns the newest checkpoint under `root` whose manifest, file sizes and checksums hold.
[[nodiscard]] CheckpointSearch find_newest_checkpoint(const std::filesystem::path& root);
/// Collective; the ranks share the file reads.
[[nodiscard]] CheckpointSearch find_newest_checkpoint(const Communicator& comm,
                                                      const std::filesystem::path& root);

/// Opens a named checkpoint (--resume PATH). Throws DataError with the reason if it is invalid.
[[nodiscard]] Checkpoint open_checkpoint(const std::filesystem::path& directory);
/// Collective.
[[nodiscard]] Checkpoint open_checkpoint(const Communicator& comm,
                                         const std::filesystem::path& directory);

/// Throws ConfigError listing the identity keys that differ (old → new) and are not in `accepted`.
void expect_same_identity(const Checkpoint& checkpoint, const Identity& identity,
                          const std::vector<std::string>& accepted);

/// Throws DataError naming the first tensor that differs.
void expect_same_tensors(const Checkpoint& checkpoint, const ParameterTable& table);

/// Reads any part of a checkpoint of any world size straight into its target. Keeps the last few
/// files open, so a model can be read group by group. Not collective, not thread-safe.
class SliceReader {
 public:
  /// Requires: both outlive the reader. Throws DataError if the tensors differ from the table's.
  SliceReader(const Checkpoint& checkpoint, const ParameterTable& table);
  ~SliceReader();
  SliceReader(const SliceReader&) = delete;
  SliceReader& operator=(const SliceReader&) = delete;

  /// Fills `target` with `ranges` of the table's flat vector, concatenated; padding becomes zero.
  /// Throws DataError if a file is damaged or has no moments; `target` may then be partly filled.
  void read(ShardVector vector, std::span<const ParameterTable::Range> ranges,
            std::span<float> target);
  /// Fills `target`, the shard vector of shard `shard` (checkpoints/shard_slices.h).
  void read_shard(ShardVector vector, int shard, std::span<float> target);

  [[nodiscard]] std::int64_t elements_read() const noexcept { return elements_read_; }
  /// Reopened files count again.
  [[nodiscard]] std::int64_t files_opened() const noexcept { return files_opened_; }

 private:
  struct Place {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::size_t shard = 0;
    std::size_t slice = 0;
  };

  [[nodiscard]] ShardFile& open(std::size_t shard);

  const Checkpoint& checkpoint_;
  const ParameterTable& table_;
  std::vector<Place> places_;  ///< Ascending.
  /// Most recently used first.
  std::list<std::pair<std::size_t, ShardFile>> open_;
  std::int64_t elements_read_ = 0;
  std::int64_t files_opened_ = 0;
};

/// Reads weights one tensor at a time (TensorValues of hf_model.h), with memory for the largest.
class CheckpointTensors {
 public:
  /// Requires: all three outlive this object.
  CheckpointTensors(const Checkpoint& checkpoint, const ParameterTable& table,
                    MemoryAccount& account);
  /// The result is valid until the next call.
  [[nodiscard]] std::span<const float> operator()(const ParameterEntry& entry);

 private:
  SliceReader reader_;
  Buffer memory_;
};

}  // namespace jforge
