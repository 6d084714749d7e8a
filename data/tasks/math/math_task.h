#pragma once

#include "data/tasks/math/math_answer.h"
#include "data/tasks/task.h"

namespace jforge {

/// Competition mathematics (Hendrycks et al., "Measuring mathematical problem solving with the MATH
/// dataset", 2021). "math": the 5,000 test problems {problem, level, type, solution}; the gold
/// answer is the solution's last \boxed{…}. "math500": the 500 of them held out by Lightman et al.
/// ("Let's verify step by step", 2023), {problem, answer}.
///
/// Prompt styles and token limits:
///  - "evalchemy" (default): user turn "Problem: {p}\nMark your solution with \boxed\nAnswer:";
///    4,096 (evalchemy's 32,768 is most models' whole context).
///  - "qwen": system turn "Please reason step by step, and put your final answer within \boxed{}.",
///    the problem as the user turn (Qwen2.5-Math); 2,048.
///  - "4-shot": raw text "Problem:\n{p}\n\nSolution:" after four examples of our own
///    ("own-shots-1") in the Minerva form, ended by "Problem:"; 1,024. Scores do not compare with
///    lm-eval's minerva_math.
///
/// Rule answer-2: find_math_answer() with the boxed form (4-shot: Minerva form). Rules equal-4:
/// "string" (string_equal(), as evalchemy reports; decides the verdict) and "minerva"
/// (minerva_equal()). launch/scripts/math_values.py adds Math-Verify's verdict by value.
class MathTask final : public Task {
 public:
  enum class Problems : std::uint8_t { all, held_out };

  /// Throws ConfigError naming the styles if `options.prompt_style` is unknown or an old name.
  MathTask(Problems problems, const TaskOptions& options);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string version() const override;
  /// Reads math/test.jsonl(.gz), math/math500.jsonl(.gz) or a file of that form.
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path& data) const override;
  [[nodiscard]] TaskPrompt prompt(const TaskRecord& record) const override;
  [[nodiscard]] std::int64_t default_max_new_tokens() const override;
  [[nodiscard]] std::vector<std::string> stop_texts() const override;
  [[nodiscard]] std::optional<std::string> extract(std::string_view completion,
                                                   const TaskRecord& record) const override;
  /// Takes an answer, or a solution with a boxed one.
  [[nodiscard]] std::optional<TaskRecord> reference_record(
      std::string_view reference) const override;
  [[nodiscard]] Verdict grade(const std::optional<std::string>& answer, const TaskRecord& record,
                              CodeRunner* runner) const override;

 private:
  enum class Style : std::uint8_t { evalchemy, qwen, own_shots };

  /// Throws DataError if there is none.
  [[nodiscard]] std::string gold_answer(const TaskRecord& record) const;

  Problems problems_;
  Style style_ = Style::evalchemy;
};

}  // namespace jforge
