#pragma once

/// Finds the newest valid checkpoint and reads it at any world size.

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

/// A checkpoint with verified manifest and shard files.
struct Checkpoint {
  std::filesystem::path directory;
  CheckpointManifest manifest;
};

struct CheckpointSearch {
  std::optional<Checkpoint> newest;  ///< Absent if no directory is valid.
  std::vector<std::string> skipped;  ///< Why each newer directory is invalid, newest first.
};

/// Returns the valid checkpoint of highest (round, step) under `root`. Skips, with a reason, every
/// directory whose manifest, file sizes or checksums do not hold.
[[nodiscard]] CheckpointSearch find_newest_checkpoint(const std::filesystem::path& root);
/// Collective over `comm`: the ranks share the file reads and get the same answer.
[[nodiscard]] CheckpointSearch find_newest_checkpoint(const Communicator& comm,
                                                      const std::filesystem::path& root);

/// Opens the named checkpoint (--resume PATH). Throws DataError with the reason if it is invalid.
[[nodiscard]] Checkpoint open_checkpoint(const std::filesystem::path& directory);
/// Collective over `comm`.
[[nodiscard]] Checkpoint open_checkpoint(const Communicator& comm,
                                         const std::filesystem::path& directory);

/// Throws ConfigError listing the identity keys (old → new), except those in `accepted`, in which
/// the checkpoint differs from `identity`.
void expect_same_identity(const Checkpoint& checkpoint, const Identity& identity,
                          const std::vector<std::string>& accepted);

/// Throws DataError naming the first tensor in which checkpoint and table differ.
void expect_same_tensors(const Checkpoint& checkpoint, const ParameterTable& table);

/// Reads any part of a checkpoint of any world size straight into its target, without extra memory.
/// Opens only the files it needs and keeps the last few open, for reading a model group by group.
/// Not collective, not thread-safe.
class SliceReader {
 public:
  /// Both arguments must outlive the reader. Throws DataError if the tensors differ from the
  /// table's.
  SliceReader(const Checkpoint& checkpoint, const ParameterTable& table);
  ~SliceReader();
  SliceReader(const SliceReader&) = delete;
  SliceReader& operator=(const SliceReader&) = delete;

  /// Fills `target` with `ranges` of the table's flat vector, one after another; padding becomes
  /// zero. Throws DataError if a file is damaged or the checkpoint lacks the requested moments;
  /// `target` may then be partly filled.
  void read(ShardVector vector, std::span<const ParameterTable::Range> ranges,
            std::span<float> target);
  /// Fills `target`, the shard vector of shard `shard` (checkpoints/shard_slices.h). Throws as
  /// read().
  void read_shard(ShardVector vector, int shard, std::span<float> target);

  /// Elements read from files so far.
  [[nodiscard]] std::int64_t elements_read() const noexcept { return elements_read_; }
  /// Files opened so far; reopened ones count again.
  [[nodiscard]] std::int64_t files_opened() const noexcept { return files_opened_; }

 private:
  /// Range of the flat vector that one slice of a shard holds.
  struct Place {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::size_t shard = 0;
    std::size_t slice = 0;
  };

  [[nodiscard]] ShardFile& open(std::size_t shard);

  const Checkpoint& checkpoint_;
  const ParameterTable& table_;
  std::vector<Place> places_;  ///< The whole checkpoint, ascending.
  /// Open files by shard number, most recently used first.
  std::list<std::pair<std::size_t, ShardFile>> open_;
  std::int64_t elements_read_ = 0;
  std::int64_t files_opened_ = 0;
};

/// Reads weights one tensor at a time (TensorValues of hf_model.h) into a buffer for the largest
/// tensor, charged to `account`.
class CheckpointTensors {
 public:
  /// All three arguments must outlive this object. Throws as SliceReader.
  CheckpointTensors(const Checkpoint& checkpoint, const ParameterTable& table,
                    MemoryAccount& account);
  /// Returns a tensor's weights, valid until the next call. Throws as SliceReader::read().
  [[nodiscard]] std::span<const float> operator()(const ParameterEntry& entry);

 private:
  SliceReader reader_;
  Buffer memory_;
};

/// Runs SliceReader::read() once.
void read_slices(const Checkpoint& checkpoint, const ParameterTable& table, ShardVector vector,
                 std::span<const ParameterTable::Range> ranges, std::span<float> target);

/// Fills the shard vectors of shard `shard` (checkpoints/shard_slices.h), each with
/// shard_vector_size(table) elements; padding becomes zero. If both moments are empty, reads only
/// weights. Throws as SliceReader.
void read_shard_vectors(const Checkpoint& checkpoint, const ParameterTable& table, int shard,
                        std::span<float> weights, std::span<float> first_moment,
                        std::span<float> second_moment);

/// Reads all weights into the table's flat float32 vector, in one process; padding becomes zero.
void read_weights(const Checkpoint& checkpoint, const ParameterTable& table, TensorView flat);
/// Collective over `comm`: rank 0 reads and broadcasts group by group, so only rank 0 needs the
/// files. All ranks throw DataError if rank 0 cannot read.
void read_weights(const Communicator& comm, const Checkpoint& checkpoint,
                  const ParameterTable& table, TensorView flat);

}  // namespace jforge
