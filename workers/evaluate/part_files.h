#pragma once

/// Lines that several ranks finish in several attempts, and the files that keep them until all are
/// there: every rank appends to a part of its own in each attempt,
/// STEM.attempt-A.rank-R-of-N.part, so that nothing finished is lost in a crash.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// Gets a line without its newline, and "NAME:LINE".
using TakeLine = std::function<void(std::string_view line, const std::string& origin)>;

/// Gives every complete line of `text`, which messages call `name`, to `take`. True when text
/// without a newline followed. Throws what `take` throws.
bool for_each_line_of(std::string_view text, std::string_view name, const TakeLine& take);
/// The same of a file. Throws DataError too when it cannot be read.
bool for_each_line(const std::filesystem::path& path, const TakeLine& take);

/// The parts of one piece of work.
class PartFiles {
 public:
  /// `directory` need not exist yet; `stem` is a file's name.
  PartFiles(std::filesystem::path directory, std::string stem)
      : directory_(std::move(directory)), stem_(std::move(stem)) {}

  [[nodiscard]] std::filesystem::path part(std::int64_t attempt, Rank rank, int ranks) const;
  /// Parts that exist, sorted by attempt, then by name.
  [[nodiscard]] std::vector<std::filesystem::path> all() const;
  /// One more than the highest attempt of a part that exists; 1 when there is none.
  [[nodiscard]] std::int64_t next_attempt() const;
  /// Gives every line of every part to `take`, in the order of all(). A torn last line is left out:
  /// a crash in the middle of a write leaves one. Any other line for which `take` throws DataError
  /// is left out with a warning that names file and line; `lost` says what becomes of such lines
  /// ("samples are evaluated again").
  void read(const TakeLine& take, std::string_view lost) const;
  /// Throws EnvironmentError naming the part that stays.
  void remove() const;

 private:
  std::filesystem::path directory_;
  std::string stem_;
};

}  // namespace jforge
