#pragma once

/// Index of a directory's committed shards, kept beside them in `index-RANK.jsonl`
/// (TRAJECTORY_FORMAT.md "Index"), so that a start opens only shards that are not indexed.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/trajectories/shard_info.h"
#include "runtime/append_log.h"

namespace jforge {

/// The index of one directory.
class ShardIndex {
 public:
  /// Creates an empty index.
  ShardIndex() = default;
  /// Reads the directory's index files. Skips damaged lines and unreadable files and lists them in
  /// damage().
  static ShardIndex read(const std::filesystem::path& directory);

  /// Returns the indexed content of `shard`, or nullopt if it is not indexed or its size or ctime
  /// has changed since.
  [[nodiscard]] std::optional<ShardInfo> find(const std::filesystem::path& shard) const;
  /// One text "FILE:LINE: REASON" per damaged line.
  [[nodiscard]] const std::vector<std::string>& damage() const { return damage_; }

  /// Returns the index files of `directory`, sorted by name; none if it does not exist.
  static std::vector<std::filesystem::path> files(const std::filesystem::path& directory);
  /// Removes the index files of `directory` as far as possible, so that every shard is read again.
  static void forget(const std::filesystem::path& directory) noexcept;

 private:
  struct Entry {
    std::int64_t bytes = 0;
    std::int64_t changed_nanoseconds = 0;  ///< ctime
    ShardInfo info;
  };

  void take_line(std::string_view line);

  /// Every line ever written, by file name; find() picks the one that matches the present file.
  std::unordered_multimap<std::string, Entry> entries_;
  std::vector<std::string> damage_;
};

/// One rank's index file; only that rank appends to it.
class ShardIndexLog {
 public:
  /// Opens or creates the file. Throws EnvironmentError on failure.
  ShardIndexLog(const std::filesystem::path& directory, Rank rank);

  /// Appends a committed shard. Not durable: a lost line only means that the shard is read again.
  /// Throws EnvironmentError on failure.
  void append(const ShardInfo& shard);

 private:
  AppendLog log_;
};

}  // namespace jforge
