#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace jforge {

/// The requested form is searched first.
enum class MathAnswerForm : std::uint8_t { boxed, minerva };

struct MathAnswer {
  std::string text;       ///< As written in a box, else trimmed_answer().
  std::string_view rule;  ///< "boxed", "minerva", "answer-is" or "marked".
};

/// Removes surrounding blanks, "$", "*" (bold), ":" and full stops.
[[nodiscard]] std::string_view trimmed_answer(std::string_view text);

/// Finds the answer. Form boxed: the last "\boxed{…}" (last_boxed()); else the Minerva form, the
/// text between the first "The final answer is" and "I hope it is correct" or the line's end; else
/// the sentence after the last "answer is"; else the line after the last "####". Form minerva: the
/// Minerva form first. If an answer in words holds a box, the box's content counts. Skips empty
/// answers. Linear time.
[[nodiscard]] std::optional<MathAnswer> find_math_answer(std::string_view completion,
                                                         MathAnswerForm form);

}  // namespace jforge
