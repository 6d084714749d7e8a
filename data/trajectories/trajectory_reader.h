#pragma once

/// Reads one trajectory shard (TRAJECTORY_FORMAT.md).

#include <cstdint>
#include <filesystem>
#include <vector>

#include "data/hdf5/hdf5_file.h"
#include "data/trajectories/shard_info.h"
#include "data/trajectories/trajectory.h"

namespace jforge {

/// An open shard. Holds identity and index in memory, reads tokens per record. Not thread-safe.
class TrajectoryReader {
 public:
  /// Opens a shard, checks its seal as told by `check`, and its index. Throws DataError naming file
  /// and damage.
  explicit TrajectoryReader(const std::filesystem::path& path,
                            SealCheck check = SealCheck::content);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] const ShardIdentity& identity() const { return identity_; }
  /// Prompt ids in file order.
  [[nodiscard]] const std::vector<PromptId>& prompt_ids() const { return prompt_id_; }
  /// Stored record digests in file order.
  [[nodiscard]] const std::vector<std::uint64_t>& digests() const { return digest_; }
  [[nodiscard]] std::size_t size() const { return prompt_id_.size(); }

  /// Returns the packed length P + 2·n·N of record `index`, from the shard's index alone.
  [[nodiscard]] std::int64_t packed_length(std::size_t index) const;
  /// Returns sums over the records, from the shard's index alone.
  [[nodiscard]] ShardTotals totals() const;
  [[nodiscard]] ShardInfo info() const;
  /// Reads record `index`. Throws DataError if its tokens are unreadable or inconsistent.
  [[nodiscard]] Trajectory read(std::size_t index) const;

  /// Compares every record's digest with the stored one. Throws DataError naming the prompt.
  void verify() const;

 private:
  void read_identity();
  void read_index();
  [[noreturn]] void damaged(const std::string& what) const;

  Hdf5Reader file_;
  ShardIdentity identity_;
  std::vector<std::int64_t> prompt_id_, eos_position_, forwards_, flipped_blocks_;
  std::vector<std::uint64_t> digest_;
  std::vector<std::uint8_t> stop_;
  std::vector<std::int64_t> prompt_offset_, block_offset_, state_offset_;
  std::vector<std::int32_t> num_states_, states_seen_, selected_state_;
};

}  // namespace jforge
