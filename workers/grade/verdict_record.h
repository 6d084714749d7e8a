#pragma once

/// One verdict as a sealed JSON line (runtime/text_seal.h).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace jforge {

struct VerdictRecord {
  std::int64_t index = 0;  ///< 0-based position in the completions' file.
  std::string key;         ///< Completion::key
  std::string verdict;     ///< "pass", "fail" or "timeout".
  /// On the base tests alone, for tasks with additional tests.
  std::optional<std::string> base_verdict;
  std::string reason;  ///< As Verdict::reason; invalid UTF-8 becomes U+FFFD.
  /// See Verdict::rules.
  std::vector<std::pair<std::string, bool>> rules = {};

  bool operator==(const VerdictRecord&) const = default;
};

/// Without a newline.
[[nodiscard]] std::string to_line(const VerdictRecord& record);
/// Throws DataError naming `origin` for a malformed line or a missing or wrong seal.
[[nodiscard]] VerdictRecord parse_verdict_record(std::string_view line, const std::string& origin);

}  // namespace jforge
