#pragma once

/// Saves checkpoints while training continues: save() copies the state and a background thread
/// writes this rank's shard. After every shard is durable, rank 0 commits by publishing the
/// manifest.
///
/// The commit needs all ranks, so collective calls advance it: save() → background write → poll()
/// at a step boundary, once all ranks have written → background commit by rank 0 → the poll() that
/// finds it done. finish() waits for all of it. The thread runs at low priority; a waiting caller
/// does the remaining work at its own priority. A crash before the commit leaves no manifest and
/// the older checkpoints intact, because pruning follows a durable manifest.

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
  std::int64_t every_steps = 500;  ///< Steps between checkpoints; every phase edge forces one too.
  std::int64_t keep_last = 3;      ///< Newest checkpoints to keep, ≥ 1.
  std::int64_t keep_every =
      0;  ///< Checkpoints at multiples of this step are never pruned; 0: none.

  /// Throws ConfigError naming the key.
  void validate() const;
};

/// The state to save. The views need to stay unchanged only during save().
struct TrainingStateView {
  const ParameterTable& table;  ///< shard_count = number of ranks.
  /// float32 on any device: flat [table.flat_size()], or this rank's shard vector (shard_slices.h).
  ConstTensorView weights;
  ConstTensorView first_moment;  ///< Both empty: weights only.
  ConstTensorView second_moment;
};

/// One object per rank and phase. Not thread-safe.
class CheckpointWriter {
 public:
  /// Collective over `comm`. Creates `root`, removes temporaries of earlier attempts, draws the
  /// nonce.
  CheckpointWriter(const Communicator& comm, std::filesystem::path root,
                   const CheckpointConfig& config, MemoryAccount& account);
  /// Waits for a running commit; abandons a shard that is still being written.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Collective. Commits a pending save, copies the state and starts writing. Keeps a valid
  /// checkpoint of the same round, step and identity, which determine the state; removes an invalid
  /// one. Throws on all ranks: NumericalError if a value is not finite, ConfigError if another
  /// identity has a valid checkpoint there, EnvironmentError if the disk fails.
  void save(const CheckpointState& state, const TrainingStateView& view);

  /// Collective; waits for no disk. After every rank has written, starts rank 0's background
  /// commit. Returns whether nothing is pending. Throws EnvironmentError on all ranks, naming the
  /// rank whose disk failed; older checkpoints stay.
  bool poll();

  /// Collective. Completes and commits the pending save.
  void finish();

 private:
  /// Background work: each rank writes its shard, then rank 0 publishes the manifest and prunes.
  enum class Stage : std::uint8_t { none, writing, committing };

  void snapshot(const TrainingStateView& view);
  void start(Stage stage, bool has_work);
  /// Runs one step of the stage, on the thread or on a waiting caller. Returns whether steps
  /// remain.
  bool work_some() noexcept;
  void join() noexcept;
  /// Collective. Waits for the stage and starts the next.
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
  Buffer copy_;                  ///< Holds values_, each vector aligned for direct I/O.
  ShardValues values_;           ///< [slice_elements_] each: weights, first moment, second moment.
  CheckpointManifest manifest_;  ///< On rank 0: the manifest to publish.
  std::mutex working_;           ///< Guards work_some()'s state while the thread runs.
  std::optional<ShardWriter> shard_writer_;
  std::exception_ptr failure_;
  std::atomic<bool> done_{false};     ///< This rank's part of the stage is done.
  std::atomic<bool> awaited_{false};  ///< A waiting caller does the work; the thread may end.
  std::thread thread_;
};

/// Publishes the manifest of a checkpoint whose shards are durable. Fault point:
/// checkpoint.manifest. Public for tools and tests that make checkpoints in one process.
void commit_checkpoint(const std::filesystem::path& directory, const CheckpointManifest& manifest);

/// Removes checkpoints older than (`newest_round`, `newest_step`) beyond the retention, and older
/// directories that never became checkpoints. Always keeps the newest checkpoint of the previous
/// round, because `newest_round`'s trajectories are (re)generated from its weights. Warns about and
/// keeps a checkpoint whose manifest the system cannot read. A removed checkpoint loses its
/// manifest first, so a partly removed one is invalid. Fault point: checkpoint.prune, once per
/// directory. Returns the removed names. Throws EnvironmentError.
std::vector<std::string> prune_checkpoints(const std::filesystem::path& root,
                                           std::int64_t newest_round, std::int64_t newest_step,
                                           const CheckpointConfig& config);

/// Renames a file or directory to NAME.abandoned (…-2 if taken). Returns the new name. Throws
/// EnvironmentError.
std::string abandon(const std::filesystem::path& path);
/// Abandons the checkpoints newer than (round, step), so that searches ignore them: training
/// resumes from there and must neither continue them nor mistake them for its own. Returns the new
/// names, newest first. Throws EnvironmentError.
std::vector<std::string> abandon_checkpoints_after(const std::filesystem::path& root,
                                                   std::int64_t round, std::int64_t step);

}  // namespace jforge
