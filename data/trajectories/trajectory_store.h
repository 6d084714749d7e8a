#pragma once

/// All committed trajectories of a round: a directory of shards and its index (shard_index.h).

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

/// A damaged shard file. Its prompts count as not generated.
struct DamagedShard {
  std::filesystem::path path;
  std::string reason;
};

/// Lists committed shards by file name in lease order; empty if `directory` does not exist. Throws
/// EnvironmentError if it cannot be listed.
[[nodiscard]] std::vector<std::pair<LeaseId, std::filesystem::path>> list_committed_shards(
    const std::filesystem::path& directory);

/// Not thread-safe (one store per thread is fine).
class TrajectoryStore {
 public:
  /// Scans `directory` for committed shards in lease order, without the index. SealCheck::content
  /// reads every byte and finds all damage here; SealCheck::size finds some of it on first use.
  /// Damaged shards are listed in damaged(). Throws DataError if two valid shards hold the same
  /// prompt or differ in round, block size or identity. A missing directory is an empty store.
  static TrajectoryStore open(const std::filesystem::path& directory,
                              SealCheck check = SealCheck::content);
  /// Builds a store of exactly these shards, in this order, without touching a file.
  static TrajectoryStore of(std::vector<ShardInfo> shards);
  /// Rebuilds a store in `directory` that another process has opened and described with index().
  /// Touches no file until a record is read. Throws InternalError if `index` is malformed.
  static TrajectoryStore from_index(const std::filesystem::path& directory, std::string_view index);
  /// Scans `directory` until it holds all of `expected`, because a network file system may list
  /// another host's new shards late. Reads every byte of shards that are not indexed or have
  /// changed. Throws DataError naming the first prompt missing after `wait_seconds` (default:
  /// publication_wait_seconds of the directory).
  static TrajectoryStore open_complete(const std::filesystem::path& directory,
                                       std::span<const PromptId> expected,
                                       std::optional<double> wait_seconds = std::nullopt);

  /// Returns the intact shards' content for from_index(), about 40 bytes a record.
  [[nodiscard]] std::string index() const;
  /// Number of shard files opened so far, for the scan or a record.
  [[nodiscard]] std::int64_t files_opened() const { return files_opened_; }

  [[nodiscard]] const std::vector<ShardInfo>& shards() const { return shards_; }
  [[nodiscard]] const std::vector<DamagedShard>& damaged() const { return damaged_; }
  /// Number of records.
  [[nodiscard]] std::size_t size() const { return places_.size(); }
  /// Returns the index in shards() of the shard that holds the record. Throws DataError if none
  /// does.
  [[nodiscard]] std::size_t shard_of(PromptId prompt_id) const;
  [[nodiscard]] bool contains(PromptId prompt_id) const { return places_.contains(prompt_id); }
  /// Returns all prompt ids, ascending.
  [[nodiscard]] std::vector<PromptId> prompt_ids() const;
  /// Returns the highest lease number, damaged files included, plus 1; 0 for an empty store.
  [[nodiscard]] LeaseId next_lease() const { return next_lease_; }

  /// Reads a record; the most recently used shards stay open. A shard's first opening here checks
  /// every byte, unless the scan has done so. Throws DataError if the store lacks the record, or
  /// its shard is damaged: the directory's index is then removed, so that the next start reads all
  /// shards. Fault place: trajectories.open, before a shard is opened.
  [[nodiscard]] Trajectory read(PromptId prompt_id) const;

  /// Returns sums over all records, as found by the scan.
  [[nodiscard]] ShardTotals totals() const;

  /// Returns the digest over all records by prompt id, 16 hex digits; independent of ranks and
  /// leases.
  [[nodiscard]] std::string store_digest() const;

  /// Checks every record of every shard against its digest. Throws DataError naming the first
  /// damaged shard or record; shards found damaged by the scan count.
  void verify() const;

 private:
  void scan(const std::filesystem::path& directory, SealCheck check, const ShardIndex& index);
  void add(const std::filesystem::path& path, SealCheck check, const ShardIndex& index);
  void add(ShardInfo info, bool checked);
  /// Returns shard and record index. Throws DataError if the store lacks the prompt.
  [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> place_of(PromptId prompt_id) const;
  [[nodiscard]] const TrajectoryReader& reader(std::size_t shard) const;

  std::vector<ShardInfo> shards_;
  std::vector<DamagedShard> damaged_;
  std::unordered_set<std::string> known_;  ///< Paths of intact and damaged shards.
  mutable std::vector<bool> checked_;      ///< By shard: this store has read every byte.
  std::unordered_map<PromptId, std::pair<std::uint32_t, std::uint32_t>> places_;
  LeaseId next_lease_ = 0;
  /// Open shards, most recently used first.
  mutable std::list<std::pair<std::size_t, TrajectoryReader>> open_;
  mutable std::int64_t files_opened_ = 0;
};

}  // namespace jforge
