#pragma once

#include "data/tasks/math/math_answer.h"
#include "data/tasks/task.h"

namespace jforge {

/// Competition mathematics (Hendrycks et al., "Measuring mathematical problem solving with the MATH
/// dataset", 2021). Two sets: "math", the 5,000 test problems {problem, level, type, solution} with
/// the gold answer in the last \boxed{…} of the solution; "math500", the 500 of them that Lightman
/// et al. ("Let's verify step by step", 2023) held out, {problem, answer}.
///
/// Prompt styles:
///  - "evalchemy" (default): one user turn, "Problem: {p}\nMark your solution with
///  \boxed\nAnswer:".
///  - "qwen": system turn "Please reason step by step, and put your final answer within \boxed{}.",
///    the problem as the user turn (the Qwen2.5-Math form).
///  - "4-shot": raw text "Problem:\n{p}\n\nSolution:" behind four worked examples of our own
///    (revision "own-shots-1") in the Minerva form, ended by "Problem:". lm-eval's minerva_math has
///    the same form and other examples: figures do not compare.
///
/// Tokens to generate at most: evalchemy 4,096 (its own limit, 32,768, is all that most models
/// have: set max_new_tokens for long reasoning), qwen 2,048, 4-shot 1,024.
///
/// Rule answer-2: find_math_answer(), the boxed form first (4-shot: the Minerva form first); a
/// box's content as it stands. Rules equal-4: every answer is judged by "string" (string_equal(),
/// what evalchemy reports; it decides the verdict) and "minerva" (minerva_equal()).
/// launch/scripts/math_values.py adds the verdict of Math-Verify, which compares values.
class MathTask final : public Task {
 public:
  enum class Problems : std::uint8_t { all, held_out };

  /// ConfigError naming the styles when `options.prompt_style` is unknown, the new name when it is
  /// an old one.
  MathTask(Problems problems, const TaskOptions& options);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string version() const override;
  /// math/test.jsonl(.gz) or math/math500.jsonl(.gz) under a directory, or a file of that form.
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path& data) const override;
  [[nodiscard]] TaskPrompt prompt(const TaskRecord& record) const override;
  [[nodiscard]] std::int64_t default_max_new_tokens() const override;
  [[nodiscard]] std::vector<std::string> stop_texts() const override;
  [[nodiscard]] std::optional<std::string> extract(std::string_view completion,
                                                   const TaskRecord& record) const override;
  /// An answer, or a solution that has it in a box.
  [[nodiscard]] std::optional<TaskRecord> reference_record(
      std::string_view reference) const override;
  [[nodiscard]] Verdict grade(const std::optional<std::string>& answer, const TaskRecord& record,
                              CodeRunner* runner) const override;

 private:
  enum class Style : std::uint8_t { evalchemy, qwen, own_shots };

  /// DataError when the record has none.
  [[nodiscard]] std::string gold_answer(const TaskRecord& record) const;

  Problems problems_;
  Style style_ = Style::evalchemy;
};

}  // namespace jforge
