#pragma once

/// What the committed shards of a directory hold, remembered beside them in `index-RANK.jsonl`
/// (TRAJECTORY_FORMAT.md "Index"): a start opens the shards that are not remembered, not the store.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/trajectories/shard_info.h"
#include "runtime/append_log.h"

namespace jforge {

/// All that is remembered of one directory's shards.
class ShardIndex {
 public:
  /// Remembers nothing.
  ShardIndex() = default;
  /// Reads the directory's index files. A line that does not hold is left out and named in
  /// damage(); a file that cannot be read counts as one such line.
  static ShardIndex read(const std::filesystem::path& directory);

  /// What `shard` holds; nothing when it is not remembered, or its size or the time of its last
  /// change is another than when it was.
  [[nodiscard]] std::optional<ShardInfo> find(const std::filesystem::path& shard) const;
  /// A text "FILE:LINE: WHY" for each line that does not hold.
  [[nodiscard]] const std::vector<std::string>& damage() const { return damage_; }

  /// The index files of `directory`, sorted by name; none when it does not exist.
  static std::vector<std::filesystem::path> files(const std::filesystem::path& directory);
  /// Removes the index files of `directory`, as far as the system lets it: every shard will be read
  /// again.
  static void forget(const std::filesystem::path& directory) noexcept;

 private:
  struct Entry {
    std::int64_t bytes = 0;
    std::int64_t changed_nanoseconds = 0;  ///< Time of the file's last change (ctime).
    ShardInfo info;
  };

  void take_line(std::string_view line);

  /// By file name: all that was ever remembered of it, by whatever rank. Which line is of the file
  /// as it is now says the file.
  std::unordered_multimap<std::string, Entry> entries_;
  std::vector<std::string> damage_;
};

/// One rank's index file, which it alone appends to.
class ShardIndexLog {
 public:
  /// Opens or creates it. EnvironmentError when it cannot be.
  ShardIndexLog(const std::filesystem::path& directory, Rank rank);

  /// Remembers what a committed shard holds. Not durable: what a crash takes is read again from the
  /// shard. EnvironmentError when it cannot be written.
  void append(const ShardInfo& shard);

 private:
  AppendLog log_;
};

}  // namespace jforge
