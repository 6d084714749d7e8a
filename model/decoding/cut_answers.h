#pragma once

/// A warning if most answers of a phase were cut at the length limit.

#include <cstdint>
#include <optional>
#include <string>

namespace jforge {

/// How the answers of a phase ended.
struct AnswerEnds {
  std::int64_t answers = 0;
  std::int64_t cut = 0;  ///< By StopReason::length.
};

/// Returns a warning if more than half of the answers were cut. `phase` names them; `key` and
/// `longest` are the limit.
[[nodiscard]] std::optional<std::string> warning_of_cut_answers(const std::string& phase,
                                                                const AnswerEnds& ends,
                                                                const std::string& key,
                                                                std::int64_t longest);

}  // namespace jforge
