#pragma once

/// Finds the newest checkpoint that can be trusted and reads it at any world size.

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

/// A checkpoint whose manifest and files were verified.
struct Checkpoint {
  std::filesystem::path directory;
  CheckpointManifest manifest;
};

struct CheckpointSearch {
  std::optional<Checkpoint> newest;  ///< Absent when no directory holds a valid checkpoint.
  std::vector<std::string>
      skipped;  ///< Newer directories that do not, each with the reason, newest first.
};

/// The checkpoint of highest (round, step) under `root` whose manifest holds and whose files have
/// the sizes and checksums it says. Directories without a valid manifest are no checkpoints and are
/// skipped with a reason.
[[nodiscard]] CheckpointSearch find_newest_checkpoint(const std::filesystem::path& root);
/// Collective over `comm`: the ranks share the reading of files; all get the same answer.
[[nodiscard]] CheckpointSearch find_newest_checkpoint(const Communicator& comm,
                                                      const std::filesystem::path& root);

/// One named checkpoint (--resume PATH). Throws DataError with the reason when it is not valid.
[[nodiscard]] Checkpoint open_checkpoint(const std::filesystem::path& directory);
/// Collective over `comm`.
[[nodiscard]] Checkpoint open_checkpoint(const Communicator& comm,
                                         const std::filesystem::path& directory);

/// Throws ConfigError listing the identity keys (old → new) in which the checkpoint differs from
/// `identity`, but for those in `accepted`.
void expect_same_identity(const Checkpoint& checkpoint, const Identity& identity,
                          const std::vector<std::string>& accepted);

/// Throws DataError naming the first tensor that the checkpoint and the table do not agree on.
void expect_same_tensors(const Checkpoint& checkpoint, const ParameterTable& table);

/// Reads any part of a checkpoint, whatever world size wrote it, straight into its target: no copy
/// and no memory beside it. Opens only the files that hold what is asked for, and keeps the last
/// few open, so that a model can be read group by group. Not collective, not thread-safe.
class SliceReader {
 public:
  /// Both outlive the reader. Throws DataError when the tensors are not the table's.
  SliceReader(const Checkpoint& checkpoint, const ParameterTable& table);
  ~SliceReader();
  SliceReader(const SliceReader&) = delete;
  SliceReader& operator=(const SliceReader&) = delete;

  /// Fills `target` with the elements of `ranges` of the table's flat vector, one range after
  /// another; padding becomes zero. Throws DataError naming the file, also when moments are asked
  /// of a checkpoint that has none; then parts of the target may have been filled.
  void read(ShardVector vector, std::span<const ParameterTable::Range> ranges,
            std::span<float> target);
  /// Fills `target`, a shard vector of the table (checkpoints/shard_slices.h), with what is shard
  /// `shard`'s. Throws as read().
  void read_shard(ShardVector vector, int shard, std::span<float> target);

  /// Elements that came from files so far.
  [[nodiscard]] std::int64_t elements_read() const noexcept { return elements_read_; }
  /// Files opened so far; one that was closed and opened again counts twice.
  [[nodiscard]] std::int64_t files_opened() const noexcept { return files_opened_; }

 private:
  /// Elements of the flat vector that a slice of a shard holds.
  struct Place {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::size_t shard = 0;
    std::size_t slice = 0;
  };

  [[nodiscard]] ShardFile& open(std::size_t shard);

  const Checkpoint& checkpoint_;
  const ParameterTable& table_;
  std::vector<Place> places_;  ///< All of the checkpoint, ascending.
  /// Open files by shard number, the one used last first.
  std::list<std::pair<std::size_t, ShardFile>> open_;
  std::int64_t elements_read_ = 0;
  std::int64_t files_opened_ = 0;
};

/// A checkpoint's weights one tensor at a time (TensorValues of hf_model.h): memory of the largest,
/// charged to `account`.
class CheckpointTensors {
 public:
  /// All three outlive it. Throws as SliceReader.
  CheckpointTensors(const Checkpoint& checkpoint, const ParameterTable& table,
                    MemoryAccount& account);
  /// Valid until the next call. Throws DataError as SliceReader::read.
  [[nodiscard]] std::span<const float> operator()(const ParameterEntry& entry);

 private:
  SliceReader reader_;
  Buffer memory_;
};

/// SliceReader::read for one vector and one set of ranges.
void read_slices(const Checkpoint& checkpoint, const ParameterTable& table, ShardVector vector,
                 std::span<const ParameterTable::Range> ranges, std::span<float> target);

/// Fills the shard vectors of shard `shard` of `table` (checkpoints/shard_slices.h); padding
/// becomes zero. Either all three have shard_vector_size(table) elements, or the moments are empty
/// and only weights are read. Throws DataError as SliceReader does.
void read_shard_vectors(const Checkpoint& checkpoint, const ParameterTable& table, int shard,
                        std::span<float> weights, std::span<float> first_moment,
                        std::span<float> second_moment);

/// All weights into the flat float32 vector of `table`, for one process alone; padding becomes
/// zero.
void read_weights(const Checkpoint& checkpoint, const ParameterTable& table, TensorView flat);
/// Collective over `comm`: rank 0 reads, group by group, and every group is broadcast. A checkpoint
/// that rank 0 cannot read is everybody's DataError; the others need not see the files.
void read_weights(const Communicator& comm, const Checkpoint& checkpoint,
                  const ParameterTable& table, TensorView flat);

}  // namespace jforge
