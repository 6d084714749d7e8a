#pragma once

/// Lines collected over several attempts. In each attempt a rank appends to its own file
/// STEM.attempt-A.rank-R-of-N.part, so that a crash loses no finished line.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// `line` without newline; `origin`: "NAME:LINE".
using TakeLine = std::function<void(std::string_view line, const std::string& origin)>;

/// Calls `take` for every complete line of `text`, called `name` in messages. True if text without
/// a newline follows.
bool for_each_line_of(std::string_view text, std::string_view name, const TakeLine& take);
/// Throws as read_file(), too.
bool for_each_line(const std::filesystem::path& path, const TakeLine& take);

class PartFiles {
 public:
  /// `directory` need not exist; `stem` is a file name.
  PartFiles(std::filesystem::path directory, std::string stem)
      : directory_(std::move(directory)), stem_(std::move(stem)) {}

  [[nodiscard]] std::filesystem::path part(std::int64_t attempt, Rank rank, int ranks) const;
  /// Sorted by attempt, then by name.
  [[nodiscard]] std::vector<std::filesystem::path> all() const;
  /// Highest attempt + 1.
  [[nodiscard]] std::int64_t next_attempt() const;
  /// Calls `take` for every line, in the order of all(). Skips a torn last line, left by a crash,
  /// and, with a warning, lines for which `take` throws DataError; `lost` says what happens to them
  /// ("samples are evaluated again").
  void read(const TakeLine& take, std::string_view lost) const;
  /// Throws EnvironmentError naming a part that remains.
  void remove() const;

 private:
  std::filesystem::path directory_;
  std::string stem_;
};

}  // namespace jforge
