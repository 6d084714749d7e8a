#pragma once

/// Index of a directory's committed shards in `index-RANK.jsonl` (TRAJECTORY_FORMAT.md "Index"): a
/// start opens only shards missing from it.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/trajectories/shard_info.h"
#include "runtime/append_log.h"

namespace jforge {

class ShardIndex {
 public:
  ShardIndex() = default;
  /// Skips damaged lines and unreadable files; damage() lists them.
  static ShardIndex read(const std::filesystem::path& directory);

  /// Returns nullopt if `shard` is not indexed or has changed since (size, ctime).
  [[nodiscard]] std::optional<ShardInfo> find(const std::filesystem::path& shard) const;
  /// Returns "FILE:LINE: REASON" per damaged line.
  [[nodiscard]] const std::vector<std::string>& damage() const { return damage_; }

  /// Returns the index files sorted by name.
  static std::vector<std::filesystem::path> files(const std::filesystem::path& directory);
  /// Removes the index files if possible, so that every shard is read again.
  static void forget(const std::filesystem::path& directory) noexcept;

 private:
  struct Entry {
    std::int64_t bytes = 0;
    std::int64_t changed_nanoseconds = 0;  ///< ctime
    ShardInfo info;
  };

  void take_line(std::string_view line);

  /// All lines by file name; find() selects the one that matches the present file.
  std::unordered_multimap<std::string, Entry> entries_;
  std::vector<std::string> damage_;
};

/// One rank's index file, to which only it appends. Methods throw EnvironmentError on failure.
class ShardIndexLog {
 public:
  ShardIndexLog(const std::filesystem::path& directory, Rank rank);

  /// Appends, not durably: a shard whose line is lost is read again.
  void append(const ShardInfo& shard);

 private:
  AppendLog log_;
};

}  // namespace jforge
