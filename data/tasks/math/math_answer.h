#pragma once

/// The answer to a mathematics problem: found in a completion, and brought to the string forms by
/// which the common scorers compare.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace jforge {

/// Which form of answer a prompt asked for: that one is looked for first.
enum class MathAnswerForm : std::uint8_t { boxed, minerva };

struct MathAnswer {
  std::string text;       ///< As written, without blanks, "$" and a full stop around it.
  std::string_view rule;  ///< "boxed", "minerva", "answer-is" or "marked".
};

/// Searches a completion. Form boxed: the last "\boxed{…}" (see last_boxed); else the Minerva form,
/// what stands between "The final answer is" (its first occurrence) and "I hope it is correct" or
/// the end of the line; else what follows the last "answer is" up to the end of the sentence; else
/// what follows the last "####" on its line. Form minerva: the Minerva form before the box. Of an
/// answer found in words that is itself boxed, the box's content. Empty answers count as none.
/// Linear in the completion's length.
[[nodiscard]] std::optional<MathAnswer> find_math_answer(std::string_view completion,
                                                         MathAnswerForm form);

/// Equality by the string rules of Hendrycks et al. ("Measuring mathematical problem solving with
/// the MATH dataset", 2021): line breaks, "\!", \left, \right, degrees, "\$", "\%", a unit in
/// "\text{ …}" at the end, a name of at most two characters before "=" and blanks are dropped;
/// \dfrac, \tfrac, \frac12, \sqrt3, a/b, ".5" and "0.5" get one spelling. Stricter than the
/// original in five points: a blank between digits stays ("11 2/3" is not 112/3); two answers that
/// both name a unit ("\$" names dollars), or both a variable, must name the same one; text is
/// dropped as a unit only at the very end and unless it is "million" and the like; "x<=5" names no
/// variable; an empty form equals nothing.
[[nodiscard]] bool hendrycks_equal(std::string_view gold, std::string_view answer);

/// Equality by the rules of Lewkowycz et al. ("Solving quantitative reasoning problems with
/// language models", 2022): \text{…}, "$", degrees, spacing and words that only count ("ways",
/// "square units") are dropped, "and" is a comma, thousands lose their separators. Stricter than
/// the original: "… =" is dropped only behind a single name and unless both name different ones,
/// commas only where they group thousands without a blank and outside brackets, and units of
/// measure stay (the comparison of values reads those).
[[nodiscard]] bool minerva_equal(std::string_view gold, std::string_view answer);

}  // namespace jforge
