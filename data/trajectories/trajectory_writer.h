#pragma once

/// Writes one trajectory shard and takes it through its two-step commit (TRAJECTORY_FORMAT.md).

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/trajectories/shard_info.h"
#include "data/trajectories/trajectory.h"
#include "runtime/ids.h"

namespace jforge {

/// Of the shards that are written; readers take 1, too (TRAJECTORY_FORMAT.md "Compatibility").
inline constexpr std::int64_t kShardFormatVersion = 2;

/// `.tmp-LEASE-ATTEMPT-RANK-PROCESS` under `directory`: a job that took over counts leases and
/// attempts as the one before, of which a rank may live on for a while.
[[nodiscard]] std::filesystem::path temporary_shard_path(const std::filesystem::path& directory,
                                                         LeaseId lease, std::int64_t attempt,
                                                         Rank rank);
/// `lease-00000012.h5` under `directory`.
[[nodiscard]] std::filesystem::path committed_shard_path(const std::filesystem::path& directory,
                                                         LeaseId lease);

/// Collects the records of one lease in memory and writes them as one file.
class TrajectoryWriter {
 public:
  /// Touches no file yet. `directory` must exist when finish() is called.
  TrajectoryWriter(std::filesystem::path directory, ShardIdentity identity);

  /// Adds a record. InternalError when it is invalid, of another block size, not of this lease, or
  /// doubled.
  void append(const Trajectory& trajectory);
  /// Records added so far.
  [[nodiscard]] std::size_t size() const { return prompt_id_.size(); }

  /// Writes the temporary file, seals and syncs it; returns its path. InternalError when a prompt
  /// of the lease is missing; EnvironmentError when the file cannot be written (none is left
  /// behind).
  std::filesystem::path finish();

  /// What a reader would find in the shard once it is committed.
  [[nodiscard]] ShardInfo info() const;

 private:
  std::filesystem::path directory_;
  ShardIdentity identity_;
  std::vector<std::int64_t> prompt_id_, eos_position_, forwards_, flipped_blocks_;
  std::vector<std::uint64_t> digest_;
  std::vector<std::uint8_t> stop_;
  std::vector<std::int64_t> prompt_offset_{0}, block_offset_{0}, state_offset_{0};
  std::vector<TokenId> prompt_tokens_, state_tokens_;
  std::vector<std::int32_t> num_states_, states_seen_, selected_state_;
};

/// Commits a finished shard that the coordinator granted: renames it and syncs the directory.
/// InternalError when the lease has a committed shard already.
void commit_shard(const std::filesystem::path& directory, LeaseId lease, std::int64_t attempt,
                  Rank rank);
/// Deletes a finished shard that was not granted. No error when it is gone.
void discard_shard(const std::filesystem::path& directory, LeaseId lease, std::int64_t attempt,
                   Rank rank);

}  // namespace jforge
