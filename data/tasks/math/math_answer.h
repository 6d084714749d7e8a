#pragma once

/// Tasks whose answer is a number or a formula.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/tasks/task.h"

namespace jforge {

inline constexpr std::string_view kAnswerMark = "####";  ///< Stands before GSM8K's answers.

/// The tasks of gsm8k_task.cpp and math_task.cpp. Throw ConfigError naming the styles if
/// `options.prompt_style` is unknown.
[[nodiscard]] std::unique_ptr<Task> make_gsm8k(const TaskOptions& options);
[[nodiscard]] std::unique_ptr<Task> make_ledger(const TaskOptions& options);
[[nodiscard]] std::unique_ptr<Task> make_math(bool held_out, const TaskOptions& options);

/// The requested form is searched first.
enum class MathAnswerForm : std::uint8_t { boxed, minerva };

struct MathAnswer {
  std::string text;       ///< As written in a box, else trimmed.
  std::string_view rule;  ///< "boxed", "minerva", "answer-is" or "marked".
};

/// Finds the answer. Form boxed: the last "\boxed{…}" (last_boxed()); else the Minerva form, the
/// text between the first "The final answer is" and "I hope it is correct" or the line's end; else
/// the sentence after the last "answer is"; else the line after the last "####". Form minerva: the
/// Minerva form first. If an answer in words holds a box, the box's content counts. Skips empty
/// answers. Linear time.
[[nodiscard]] std::optional<MathAnswer> find_math_answer(std::string_view completion,
                                                         MathAnswerForm form);

// Two published string comparisons of answers, reproduced exactly so that scores compare. Both
// misjudge some answers (results/reference/math_rules.md).

/// Applies rule "string", is_equiv of Hendrycks et al. ("Measuring mathematical problem solving
/// with the MATH dataset", 2021) as in lm-evaluation-harness and evalchemy. Drops line breaks,
/// "\!", \left, \right, degrees, "\$", "\%", everything from "\text{ " on, blanks, and up to two
/// characters before a single "="; unifies \dfrac, \tfrac, \frac12, \sqrt3, a/b, ".5" and "0.5". If
/// the original fails on a side (two "\text{ ", "x/2", a final \sqrt), compares the given texts.
/// Keeps known errors: "11 2/3" equals "112/3".
[[nodiscard]] bool string_equal(std::string_view gold, std::string_view answer);

/// Applies rule "minerva", equal normal forms of Lewkowycz et al. ("Solving quantitative reasoning
/// problems with language models", 2022, appendix D): the text after the last "=", without
/// articles, blanks, units, \text{…} and the commas of "12,345". Omits lm-evaluation-harness'
/// symbolic comparison.
[[nodiscard]] bool minerva_equal(std::string_view gold, std::string_view answer);

}  // namespace jforge
