#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace jforge {

struct AnswerEnds {
  std::int64_t answers = 0;
  std::int64_t cut = 0;  ///< Stopped by StopReason::length.
};

/// Returns a warning if more than half of the answers were cut at the length limit `longest`, the
/// value of `key`. `phase` begins the message.
[[nodiscard]] std::optional<std::string> warning_of_cut_answers(const std::string& phase,
                                                                const AnswerEnds& ends,
                                                                const std::string& key,
                                                                std::int64_t longest);

}  // namespace jforge
