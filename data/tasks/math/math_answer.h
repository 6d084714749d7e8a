#pragma once

/// The answer to a mathematics problem, found in a completion.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace jforge {

/// Which form of answer a prompt asked for: that one is looked for first.
enum class MathAnswerForm : std::uint8_t { boxed, minerva };

struct MathAnswer {
  std::string text;       ///< As written; outside a box, trimmed_answer() of it.
  std::string_view rule;  ///< "boxed", "minerva", "answer-is" or "marked".
};

/// Without blanks, "$", "*" (bold), ":" and full stops around it.
[[nodiscard]] std::string_view trimmed_answer(std::string_view text);

/// Searches a completion. Form boxed: the last "\boxed{…}" (see last_boxed); else the Minerva form,
/// what stands between "The final answer is" (its first occurrence) and "I hope it is correct" or
/// the end of the line; else what follows the last "answer is" up to the end of the sentence; else
/// what follows the last "####" on its line. Form minerva: the Minerva form before the box. Of an
/// answer found in words that is itself boxed, the box's content. Empty answers count as none.
/// Linear in the completion's length.
[[nodiscard]] std::optional<MathAnswer> find_math_answer(std::string_view completion,
                                                         MathAnswerForm form);

}  // namespace jforge
