#pragma once

/// All committed trajectories of a round: a directory of shards. The index is derived from the
/// shards every time a store is opened.

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

#include "data/trajectories/trajectory_reader.h"

namespace jforge {

/// A committed shard that holds.
struct ShardInfo {
  std::filesystem::path path;
  ShardIdentity identity;
  std::vector<PromptId> prompt_ids;          ///< In file order.
  std::vector<std::uint64_t> digests;        ///< Of the records, in file order.
  std::vector<std::int64_t> packed_lengths;  ///< P + 2·n·N of the records, in file order.
  ShardTotals totals;                        ///< Over the records.
};

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
  /// Scans `directory` for committed shards, in lease order. With SealCheck::content every byte is
  /// read once, so damage of any kind is found here; SealCheck::size trusts that another process
  /// has just done so (damage is then met on first use). Damaged shards are listed, not fatal.
  /// DataError when two valid shards hold the same prompt, or differ in round, block size or
  /// identity. A directory that does not exist is an empty store.
  static TrajectoryStore open(const std::filesystem::path& directory,
                              SealCheck check = SealCheck::content);
  /// The same from exactly these files, in this order.
  static TrajectoryStore open(const std::vector<std::filesystem::path>& shards, SealCheck check);
  /// The store that another process has opened and described with index(), its shards in
  /// `directory`: no file is touched until a record is read. InternalError when `index` is garbled.
  static TrajectoryStore from_index(const std::filesystem::path& directory, std::string_view index);
  /// Scans `directory` until all of `expected` are there: a network file system may list a shard
  /// that another host has committed only after a while. DataError naming the first prompt missing
  /// after `wait_seconds` (default: publication_wait_seconds of the directory).
  static TrajectoryStore open_complete(const std::filesystem::path& directory,
                                       std::span<const PromptId> expected, SealCheck check,
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

  /// The record of `prompt_id`, read from its shard; the last few shards stay open. DataError when
  /// the store has none or its shard is damaged. Fault place: trajectories.open, before a shard is
  /// opened for it.
  [[nodiscard]] Trajectory read(PromptId prompt_id) const;

  /// Sums over all records, as found when the store was opened: no shard is read again.
  [[nodiscard]] ShardTotals totals() const;

  /// Digest over all records sorted by prompt id, 16 hex digits: independent of ranks and leases.
  [[nodiscard]] std::string store_digest() const;

  /// Reads every record of every shard against its digest. DataError naming the first damaged shard
  /// or record; damaged shards found while opening count.
  void verify() const;

 private:
  void scan(const std::filesystem::path& directory, SealCheck check);
  void add(const std::filesystem::path& path, SealCheck check);
  void add(ShardInfo info);
  /// Shard and record in it. DataError when there is none.
  [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> place_of(PromptId prompt_id) const;
  [[nodiscard]] const TrajectoryReader& reader(std::size_t shard) const;

  std::vector<ShardInfo> shards_;
  std::vector<DamagedShard> damaged_;
  std::unordered_set<std::string> known_;  ///< Paths of both.
  std::unordered_map<PromptId, std::pair<std::uint32_t, std::uint32_t>> places_;
  LeaseId next_lease_ = 0;
  /// Open shards, the most recently used first.
  mutable std::list<std::pair<std::size_t, TrajectoryReader>> open_;
  mutable std::int64_t files_opened_ = 0;
};

}  // namespace jforge
