#pragma once

/// Writes and commits one trajectory shard (TRAJECTORY_FORMAT.md).

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/trajectories/shard_info.h"
#include "data/trajectories/trajectory.h"
#include "runtime/ids.h"

namespace jforge {

/// Readers also accept 1 (TRAJECTORY_FORMAT.md "Compatibility").
inline constexpr std::int64_t kShardFormatVersion = 2;

/// Returns for example `lease-00000012.h5`.
[[nodiscard]] std::filesystem::path committed_shard_path(const std::filesystem::path& directory,
                                                         LeaseId lease);

/// Collects one lease's records in memory and writes them as one file.
class TrajectoryWriter {
 public:
  /// Requires: `directory` exists when finish() is called.
  TrajectoryWriter(std::filesystem::path directory, ShardIdentity identity);

  /// Throws InternalError if the record is invalid, a duplicate, not of this lease or of another
  /// block size.
  void append(const Trajectory& trajectory);
  [[nodiscard]] std::size_t size() const { return prompt_id_.size(); }

  /// Writes, seals and syncs the temporary file; returns its path. Throws InternalError if a record
  /// is missing, EnvironmentError if writing fails; then removes the file.
  std::filesystem::path finish();

  /// Describes the shard as it will be once committed.
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

/// Commits a shard that the coordinator granted: renames it and syncs the directory. Throws
/// InternalError if the lease is already committed.
void commit_shard(const std::filesystem::path& directory, LeaseId lease, std::int64_t attempt,
                  Rank rank);

}  // namespace jforge
