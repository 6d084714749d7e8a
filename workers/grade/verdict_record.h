#pragma once

/// One completion's verdict as a line of JSON: what ranks tell each other and keep in their parts
/// until all are there (verdict_store.h). A line is sealed (runtime/text_seal.h).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace jforge {

struct VerdictRecord {
  std::int64_t index = 0;  ///< The completion's 0-based place in its file.
  std::string key;         ///< Completion::key
  std::string verdict;     ///< "pass", "fail" or "timeout".
  /// Verdict on the base tests alone, of tasks that add further ones.
  std::optional<std::string> base_verdict;
  std::string reason;  ///< As Verdict::reason; bytes that are no UTF-8 become U+FFFD.
  /// Right by each rule, of tasks that judge by several (Verdict::rules).
  std::vector<std::pair<std::string, bool>> rules = {};

  bool operator==(const VerdictRecord&) const = default;
};

/// One line without its newline.
[[nodiscard]] std::string to_line(const VerdictRecord& record);
/// Reads a line back. Throws DataError naming `origin` for anything else, also when its seal is
/// missing.
[[nodiscard]] VerdictRecord parse_verdict_record(std::string_view line, const std::string& origin);

}  // namespace jforge
