#pragma once

/// Reads one trajectory shard (TRAJECTORY_FORMAT.md).

#include <cstdint>
#include <filesystem>
#include <vector>

#include "data/hdf5/hdf5_file.h"
#include "data/trajectories/shard_info.h"
#include "data/trajectories/trajectory.h"

namespace jforge {

/// An open shard: its identity and index in memory, token arrays read record by record. Not
/// thread-safe.
class TrajectoryReader {
 public:
  /// Opens a shard, checks its seal as asked and its index fully. DataError naming the file and
  /// what is wrong with it.
  explicit TrajectoryReader(const std::filesystem::path& path,
                            SealCheck check = SealCheck::content);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] const ShardIdentity& identity() const { return identity_; }
  /// Prompt id of each record, in file order.
  [[nodiscard]] const std::vector<PromptId>& prompt_ids() const { return prompt_id_; }
  /// Stored digest of each record, in file order.
  [[nodiscard]] const std::vector<std::uint64_t>& digests() const { return digest_; }
  [[nodiscard]] std::size_t size() const { return prompt_id_.size(); }

  /// Length of record `index` as a packed sequence, P + 2·n·N, from the index alone.
  [[nodiscard]] std::int64_t packed_length(std::size_t index) const;
  /// Sums over the shard's records, from the index alone.
  [[nodiscard]] ShardTotals totals() const;
  /// All of the above.
  [[nodiscard]] ShardInfo info() const;
  /// Record `index`. DataError when its tokens cannot be read or break a rule of trajectories.
  [[nodiscard]] Trajectory read(std::size_t index) const;

  /// Reads every record and compares its digest with the stored one. DataError naming the prompt.
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
