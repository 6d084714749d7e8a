#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "data/hdf5/hdf5_file.h"
#include "data/trajectories/shard_info.h"
#include "data/trajectories/trajectory.h"

namespace jforge {

/// An open shard (TRAJECTORY_FORMAT.md); tokens are read per record. Not thread-safe.
class TrajectoryReader {
 public:
  /// Checks seal and index. Throws DataError naming file and damage.
  explicit TrajectoryReader(const std::filesystem::path& path,
                            SealCheck check = SealCheck::content);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] const ShardIdentity& identity() const { return identity_; }
  /// Returns ids in file order, like the digests.
  [[nodiscard]] const std::vector<PromptId>& prompt_ids() const { return prompt_id_; }
  [[nodiscard]] const std::vector<std::uint64_t>& digests() const { return digest_; }
  [[nodiscard]] std::size_t size() const { return prompt_id_.size(); }

  /// Returns P + 2·n·N of record `index`.
  [[nodiscard]] std::int64_t packed_length(std::size_t index) const;
  [[nodiscard]] ShardTotals totals() const;
  [[nodiscard]] ShardInfo info() const;
  /// Throws DataError if the tokens are unreadable or inconsistent.
  [[nodiscard]] Trajectory read(std::size_t index) const;

  /// Throws DataError naming the first prompt whose record does not match its digest.
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
