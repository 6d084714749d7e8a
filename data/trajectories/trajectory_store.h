#pragma once

/// All committed trajectories of a round.

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

/// Its prompts count as not generated.
struct DamagedShard {
  std::filesystem::path path;
  std::string reason;
};

/// Lists shards by file name, in lease order. Throws EnvironmentError if an existing `directory`
/// cannot be listed.
[[nodiscard]] std::vector<std::pair<LeaseId, std::filesystem::path>> list_committed_shards(
    const std::filesystem::path& directory);

/// Not thread-safe (one store per thread is fine).
class TrajectoryStore {
 public:
  /// Scans `directory` in lease order, without the index; a missing directory is an empty store.
  /// SealCheck::content finds all damage, SealCheck::size finds some only on first use; damaged()
  /// lists damaged shards. Throws DataError if two valid shards share a prompt or differ in round,
  /// block size or identity.
  static TrajectoryStore open(const std::filesystem::path& directory,
                              SealCheck check = SealCheck::content);
  /// Builds a store; touches no file.
  static TrajectoryStore of(std::vector<ShardInfo> shards);
  /// Rebuilds a store from another process' index(), without touching a file until a record is
  /// read. Throws InternalError if `index` is malformed.
  static TrajectoryStore from_index(const std::filesystem::path& directory, std::string_view index);
  /// Scans until all of `expected` are found, because a network file system may list new shards
  /// late. Fully checks shards that are not indexed or have changed. Throws DataError naming the
  /// first prompt missing after `wait_seconds` (default: publication_wait_seconds).
  static TrajectoryStore open_complete(const std::filesystem::path& directory,
                                       std::span<const PromptId> expected,
                                       std::optional<double> wait_seconds = std::nullopt);

  /// Returns the argument of from_index(), about 40 bytes a record.
  [[nodiscard]] std::string index() const;
  /// Shard files opened so far.
  [[nodiscard]] std::int64_t files_opened() const { return files_opened_; }

  [[nodiscard]] const std::vector<ShardInfo>& shards() const { return shards_; }
  [[nodiscard]] const std::vector<DamagedShard>& damaged() const { return damaged_; }
  [[nodiscard]] std::size_t size() const { return places_.size(); }
  /// Returns the index into shards(). Throws DataError if none holds the record.
  [[nodiscard]] std::size_t shard_of(PromptId prompt_id) const;
  [[nodiscard]] bool contains(PromptId prompt_id) const { return places_.contains(prompt_id); }
  /// Returns ids in ascending order.
  [[nodiscard]] std::vector<PromptId> prompt_ids() const;
  /// Returns 1 + the highest lease number, damaged files included; 0 for an empty store.
  [[nodiscard]] LeaseId next_lease() const { return next_lease_; }

  /// Keeps the most recently used shards open. Checks every byte of a shard on first opening,
  /// unless the scan has. Throws DataError if the record is missing or its shard damaged; then also
  /// removes the directory's index, so that the next start reads all shards. Fault place:
  /// trajectories.open, before a shard is opened.
  [[nodiscard]] Trajectory read(PromptId prompt_id) const;

  /// Returns sums as found by the scan.
  [[nodiscard]] ShardTotals totals() const;

  /// Returns 16 hex digits over all records by prompt id, independent of ranks and leases.
  [[nodiscard]] std::string store_digest() const;

  /// Throws DataError naming the first shard or record that is damaged or does not match its
  /// digest.
  void verify() const;

 private:
  void scan(const std::filesystem::path& directory, SealCheck check, const ShardIndex& index);
  void add(const std::filesystem::path& path, SealCheck check, const ShardIndex& index);
  void add(ShardInfo info, bool checked);
  /// Returns shard and record index. Throws DataError if the prompt is missing.
  [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> place_of(PromptId prompt_id) const;
  [[nodiscard]] const TrajectoryReader& reader(std::size_t shard) const;

  std::vector<ShardInfo> shards_;
  std::vector<DamagedShard> damaged_;
  std::unordered_set<std::string> known_;  ///< Paths of intact and damaged shards.
  mutable std::vector<bool> checked_;      ///< By shard: this store read every byte.
  std::unordered_map<PromptId, std::pair<std::uint32_t, std::uint32_t>> places_;
  LeaseId next_lease_ = 0;
  mutable std::list<std::pair<std::size_t, TrajectoryReader>> open_;  ///< Most recently used first.
  mutable std::int64_t files_opened_ = 0;
};

}  // namespace jforge
