#pragma once

/// Saves checkpoints without stopping training: save() copies, a background thread writes this
/// rank's shard, and the manifest, which alone makes a checkpoint, is written by rank 0 once every
/// rank's shard is durable.
///
/// Shard writing needs no other rank; the commit does, so it begins in collective calls: save() →
/// background write → poll() at each step boundary, as soon as all ranks are done → background
/// commit by rank 0 → the poll() that finds it done. finish() waits for all of it. The thread takes
/// what time of the cores the others leave; who waits for it writes the rest himself, at his own
/// priority. Killed anywhere in between, the directory has no manifest and is no checkpoint; the
/// older ones are untouched, because pruning follows a durable manifest.

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "checkpoints/checkpoint_manifest.h"
#include "checkpoints/checkpoint_shard.h"
#include "checkpoints/shard_slices.h"
#include "checkpoints/shard_writer.h"
#include "model/transformer/parameter_table.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

struct CheckpointConfig {
  std::int64_t every_steps =
      500;  ///< Steps between checkpoints; they are also forced at every phase edge.
  std::int64_t keep_last = 3;  ///< Newest checkpoints to keep, at least 1.
  std::int64_t keep_every =
      0;  ///< Checkpoints whose step is a multiple of this stay for ever; 0 = none.

  /// Throws ConfigError naming the key.
  void validate() const;
};

/// The state to save, as views that need to stay unchanged only during save().
struct TrainingStateView {
  const ParameterTable& table;  ///< shard_count = number of ranks.
  /// float32 each, on any device: flat [table.flat_size()], or this rank's shard vector
  /// (shard_slices.h).
  ConstTensorView weights;
  ConstTensorView first_moment;  ///< Both empty saves weights only.
  ConstTensorView second_moment;
};

/// One object per rank and phase, all ranks together. Not thread-safe.
class CheckpointWriter {
 public:
  /// Collective over `comm`. Creates `root`, removes temporaries of earlier attempts, draws the
  /// nonce.
  CheckpointWriter(const Communicator& comm, std::filesystem::path root,
                   const CheckpointConfig& config, MemoryAccount& account);
  /// Waits for a commit under way; a shard that is still being written is abandoned.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Collective. Commits the save before, if one is pending; copies; starts writing. A valid
  /// checkpoint of the same round, step and identity is left as it is: a state is a function of
  /// those. Remains of one that is not valid are removed. Throws NumericalError on all ranks when a
  /// value to be saved is not finite, ConfigError when another identity has a valid checkpoint
  /// there, EnvironmentError when the disk refuses.
  void save(const CheckpointState& state, const TrainingStateView& view);

  /// Collective. Once every rank has written, lets rank 0 commit in the background; returns whether
  /// nothing is pending any more. Cheap: nobody waits for a disk. Throws EnvironmentError on all
  /// ranks, naming the one whose disk refused; the older checkpoints stay.
  bool poll();

  /// Collective. Waits for the pending save and commits it.
  void finish();

 private:
  /// What the thread does: every rank writes its shard, then rank 0 publishes the manifest and
  /// prunes.
  enum class Stage : std::uint8_t { none, writing, committing };

  void snapshot(const TrainingStateView& view);
  void start(Stage stage, bool has_work);
  /// The next step of the stage; whether there is more. On the thread, or by who waits for it.
  bool work_some() noexcept;
  void join() noexcept;
  /// Collective. Waits for the stage and begins the next.
  void end_stage();
  [[nodiscard]] bool already_saved(const CheckpointState& state,
                                   const TrainingStateView& view) const;
  void prune(const CheckpointState& newest) const;

  const Communicator& comm_;
  std::filesystem::path root_;
  CheckpointConfig config_;
  MemoryAccount& account_;
  std::string nonce_;

  Stage stage_ = Stage::none;
  CheckpointState state_;
  bool has_moments_ = false;
  std::vector<CheckpointTensor> tensors_;
  std::vector<ShardSlice> slices_;
  std::size_t slice_elements_ = 0;
  Buffer copy_;                  ///< Holds values_, each vector aligned for direct transfers.
  ShardValues values_;           ///< [slice_elements_] each: weights, first moment, second moment.
  CheckpointManifest manifest_;  ///< Rank 0's, to be published.
  std::mutex working_;           ///< For what work_some() touches while the thread runs.
  std::optional<ShardWriter> shard_writer_;
  std::exception_ptr failure_;
  std::atomic<bool> done_{false};     ///< This rank's part of the stage.
  std::atomic<bool> awaited_{false};  ///< Somebody waits and works himself: the thread may end.
  std::thread thread_;
};

/// Writes the manifest of a checkpoint whose shards are durable. Fault place: checkpoint.manifest.
/// For the writer and for tools and tests that make checkpoints in one process.
void commit_checkpoint(const std::filesystem::path& directory, const CheckpointManifest& manifest);

/// Removes checkpoints older than (round, step) `newest` beyond the retention, and older
/// directories that never became checkpoints. The newest of them, by then durable, is never
/// touched, nor anything newer, nor the newest of the round before `newest_round`: from its weights
/// that round's trajectories are generated, and are again when a shard turns out damaged; nor one
/// whose manifest the system does not let be read, which is warned of. A
/// checkpoint loses its manifest first, so a half-removed one is none. Fault place:
/// checkpoint.prune, once per directory. Returns the names removed. Throws EnvironmentError.
std::vector<std::string> prune_checkpoints(const std::filesystem::path& root,
                                           std::int64_t newest_round, std::int64_t newest_step,
                                           const CheckpointConfig& config);

/// Renames a file or directory to NAME.abandoned (…-2 where that is taken). Returns the new name.
/// Throws EnvironmentError.
std::string abandon(const std::filesystem::path& path);
/// Renames the checkpoints newer than (round, step) to NAME.abandoned (…-2 where that is taken),
/// which no search finds: training goes on from there, and what was trained behind it before must
/// neither be continued nor be taken for what will be trained. Returns the new names, newest first.
/// Throws EnvironmentError.
std::vector<std::string> abandon_checkpoints_after(const std::filesystem::path& root,
                                                   std::int64_t round, std::int64_t step);

}  // namespace jforge
