#pragma once

/// All committed trajectories of a round: a directory of shards, and what was remembered of them
/// (shard_index.h).

#include <cstdint>
#include <filesystem>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "data/trajectories/shard_index.h"
#include "data/trajectories/trajectory_reader.h"

namespace jforge {

/// A file under a shard's name that does not hold: its prompts count as not done.
struct DamagedShard {
  std::filesystem::path path;
  std::string reason;
};

/// Committed shards in `directory`, by their names alone, in lease order; empty when it does not
/// exist. EnvironmentError when it cannot be listed.
[[nodiscard]] std::vector<std::pair<LeaseId, std::filesystem::path>> list_committed_shards(
    const std::filesystem::path& directory);

/// Not thread-safe (one store per thread is fine).
class TrajectoryStore {
 public:
  /// Scans `directory` for committed shards, in lease order, whatever is remembered of them. With
  /// SealCheck::content every byte is read once, so damage of any kind is found here; with
  /// SealCheck::size it is met on first use. Damaged shards are listed, not fatal. DataError when
  /// two valid shards hold the same prompt, or differ in round, block size or identity. A directory
  /// that does not exist is an empty store.
  static TrajectoryStore open(const std::filesystem::path& directory,
                              SealCheck check = SealCheck::content);
  /// The same of exactly these shards, in this order, without touching a file.
  static TrajectoryStore of(std::vector<ShardInfo> shards);
  /// The store that another process has opened and described with index(), its shards in
  /// `directory`: no file is touched until a record is read. InternalError when `index` is garbled.
  static TrajectoryStore from_index(const std::filesystem::path& directory, std::string_view index);
  /// Scans `directory` until all of `expected` are there: a network file system may list a shard
  /// that another host has committed only after a while. Shards that are remembered and unchanged
  /// are not opened, of the others every byte is read. DataError naming the first prompt missing
  /// after `wait_seconds` (default: publication_wait_seconds of the directory).
  static TrajectoryStore open_complete(const std::filesystem::path& directory,
                                       std::span<const PromptId> expected,
                                       std::optional<double> wait_seconds = std::nullopt);

  /// What the scan has found of the shards that hold, for from_index() in a process of this
  /// program: about 40 bytes a record.
  [[nodiscard]] std::string index() const;
  /// Shard files that this store has opened so far, for its index or a record.
  [[nodiscard]] std::int64_t files_opened() const { return files_opened_; }

  [[nodiscard]] const std::vector<ShardInfo>& shards() const { return shards_; }
  [[nodiscard]] const std::vector<DamagedShard>& damaged() const { return damaged_; }
  /// Number of records.
  [[nodiscard]] std::size_t size() const { return places_.size(); }
  /// Which of shards() holds the record. DataError when none does.
  [[nodiscard]] std::size_t shard_of(PromptId prompt_id) const;
  [[nodiscard]] bool contains(PromptId prompt_id) const { return places_.contains(prompt_id); }
  /// All prompt ids, ascending: what is done.
  [[nodiscard]] std::vector<PromptId> prompt_ids() const;
  /// One above the highest lease number used, damaged files included; 0 for an empty store.
  [[nodiscard]] LeaseId next_lease() const { return next_lease_; }

  /// The record of `prompt_id`, read from its shard; the last few shards stay open. Every byte of a
  /// shard is checked when it is first opened here, unless the scan has done so. DataError when the
  /// store has none or its shard is damaged: what is remembered of the directory's shards is then
  /// forgotten, so that the next start reads all of them. Fault place: trajectories.open, before a
  /// shard is opened for it.
  [[nodiscard]] Trajectory read(PromptId prompt_id) const;

  /// Sums over all records, as found when the store was opened: no shard is read again.
  [[nodiscard]] ShardTotals totals() const;

  /// Digest over all records sorted by prompt id, 16 hex digits: independent of ranks and leases.
  [[nodiscard]] std::string store_digest() const;

  /// Reads every record of every shard against its digest. DataError naming the first damaged shard
  /// or record; damaged shards found while opening count.
  void verify() const;

 private:
  void scan(const std::filesystem::path& directory, SealCheck check, const ShardIndex& index);
  void add(const std::filesystem::path& path, SealCheck check, const ShardIndex& index);
  void add(ShardInfo info, bool checked);
  /// Shard and record in it. DataError when there is none.
  [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> place_of(PromptId prompt_id) const;
  [[nodiscard]] const TrajectoryReader& reader(std::size_t shard) const;

  std::vector<ShardInfo> shards_;
  std::vector<DamagedShard> damaged_;
  std::unordered_set<std::string> known_;  ///< Paths of both.
  mutable std::vector<bool> checked_;      ///< Of shards_: every byte was read by this store.
  std::unordered_map<PromptId, std::pair<std::uint32_t, std::uint32_t>> places_;
  LeaseId next_lease_ = 0;
  /// Open shards, the most recently used first.
  mutable std::list<std::pair<std::size_t, TrajectoryReader>> open_;
  mutable std::int64_t files_opened_ = 0;
};

}  // namespace jforge
