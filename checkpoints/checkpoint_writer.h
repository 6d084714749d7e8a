#pragma once

/// Saves checkpoints while training continues: save() copies the state and a background thread
/// writes this rank's shard. The manifest, which rank 0 writes after every shard is durable, is the
/// commit; a crash before it leaves the older checkpoints intact.
///
/// Collective calls advance a save: save() → background write → poll() after all ranks have written
/// → background commit by rank 0 → the poll() that finds it done. The thread runs at low priority;
/// a waiting caller takes over its work.

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
  std::int64_t every_steps = 500;  ///< Phase edges force a checkpoint too.
  std::int64_t keep_last = 3;      ///< ≥ 1
  std::int64_t keep_every = 0;     ///< Steps that are multiples of this stay forever; 0: none.

  /// Throws ConfigError naming the key.
  void validate() const;
};

/// The views must stay unchanged only during save().
struct TrainingStateView {
  const ParameterTable& table;  ///< shard_count = ranks of a copy of the state.
  /// float32, any device: flat [table.flat_size()], or this rank's shard vector (shard_slices.h).
  ConstTensorView weights;
  ConstTensorView first_moment;  ///< Both empty: weights only.
  ConstTensorView second_moment;
};

/// One object per rank and phase. Not thread-safe.
class CheckpointWriter {
 public:
  /// Collective. Creates `root` and removes temporaries of earlier attempts.
  CheckpointWriter(const Communicator& comm, std::filesystem::path root,
                   const CheckpointConfig& config, MemoryAccount& account);
  /// Waits for a running commit; abandons an unfinished shard.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Collective. Finishes the pending save, copies the state and starts writing. Keeps a valid
  /// checkpoint of this round, step and identity, which determine the state; replaces an invalid
  /// one. Throws on all ranks: NumericalError if a value is not finite, ConfigError if another
  /// identity's checkpoint is there, EnvironmentError if the disk fails.
  void save(const CheckpointState& state, const TrainingStateView& view);

  /// Collective; waits for no disk. Starts the commit after every rank has written; returns whether
  /// nothing is pending. Throws EnvironmentError on all ranks, naming the rank whose disk failed.
  bool poll();

  /// Collective. Waits for the pending save and commits it.
  void finish();

 private:
  enum class Stage : std::uint8_t { none, writing, committing };

  /// Copies of the state take turns (runtime/comm/rank_grid.h).
  [[nodiscard]] Rank writer_of(int shard) const;
  void snapshot(const TrainingStateView& view);
  void start(Stage stage, bool has_work);
  /// Returns whether steps remain.
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
  int shards_ = 1;
  bool has_moments_ = false;
  std::vector<CheckpointTensor> tensors_;
  std::vector<ShardSlice> slices_;
  std::size_t slice_elements_ = 0;
  Buffer copy_;                  ///< Holds values_, aligned for direct I/O.
  ShardValues values_;           ///< [slice_elements_] each.
  CheckpointManifest manifest_;  ///< On rank 0.
  std::mutex working_;           ///< Guards work_some().
  std::optional<ShardWriter> shard_writer_;
  std::exception_ptr failure_;
  std::atomic<bool> done_{false};     ///< This rank's part of the stage.
  std::atomic<bool> awaited_{false};  ///< A caller took over; the thread may end.
  std::thread thread_;
};

/// Publishes the manifest. Requires: the shards are durable. Fault place: checkpoint.manifest.
void commit_checkpoint(const std::filesystem::path& directory, const CheckpointManifest& manifest);

/// Removes checkpoints older than (`newest_round`, `newest_step`) beyond the retention, and older
/// directories without a valid manifest. Keeps the previous round's newest, from which
/// `newest_round`'s trajectories are (re)generated, and, with a warning, any whose manifest is
/// unreadable. Removes the manifest first, so a partly removed checkpoint is invalid. Fault place:
/// checkpoint.prune, per directory. Returns the removed names. Throws EnvironmentError.
std::vector<std::string> prune_checkpoints(const std::filesystem::path& root,
                                           std::int64_t newest_round, std::int64_t newest_step,
                                           const CheckpointConfig& config);

/// Renames `path` to NAME.abandoned (…-2 if taken); returns the new name. Throws EnvironmentError.
std::string abandon(const std::filesystem::path& path);
/// Abandons the checkpoints newer than (round, step), so that training resumed from there does not
/// mistake them for its own. Returns the new names, newest first. Throws EnvironmentError.
std::vector<std::string> abandon_checkpoints_after(const std::filesystem::path& root,
                                                   std::int64_t round, std::int64_t step);

}  // namespace jforge
