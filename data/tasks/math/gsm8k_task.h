#pragma once

#include "data/tasks/task.h"

namespace jforge {

/// Grade-school mathematics (Cobbe et al., "Training verifiers to solve math word problems", 2021):
/// records {question, answer}, the gold number after "#### " in the answer.
///
/// Prompt styles:
///  - "plain": the question alone as the user turn.
///  - "cot_boxed" (default): adds a request for steps and a boxed answer.
///  - "lm-eval" and "lm-eval-flexible": raw text "Question: {q}\nAnswer:" after five such examples,
///    drawn per question from gsm8k/train.jsonl(.gz) beside the test file as in lm-eval (seed 1234,
///    in file order); ended by "Question:", "</s>" or "<|im_end|>".
///
/// Rules extract-4 (plain) and extract-5 (cot_boxed) ignore the text after the first "#### N" line.
/// plain takes the last number right after "####", else that of the last \boxed{…}
/// (boxed_number()), else the completion's last number, or the last one after an unevaluated box;
/// cot_boxed takes the box first. Numbers compare exactly (12.0 = 12, $1,200 = 1200).
///
/// Rules strict-match (lm-eval), the first "#### (\-?[0-9\.\,]+)", and flexible-extract
/// (lm-eval-flexible), the last "(-?[$0-9.,]{2,})|(-?[0-9]+)", compare text without ",", "$" and a
/// final ".", as lm-eval (12.0 is not 12).
class Gsm8kTask : public Task {
 public:
  /// Throws ConfigError naming the styles if `options.prompt_style` is unknown or an old name.
  explicit Gsm8kTask(const TaskOptions& options);

  [[nodiscard]] std::string name() const override { return "gsm8k"; }
  [[nodiscard]] std::string version() const override;
  /// Throws DataError naming file and record if an answer has no number after "####".
  static void expect_golds(const std::vector<TaskRecord>& records,
                           const std::filesystem::path& file);
  /// Reads gsm8k/test.jsonl(.gz), test.jsonl(.gz) or a file of that form. Throws as expect_golds(),
  /// and DataError if a style with examples finds no five.
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path& data) const override;
  [[nodiscard]] TaskPrompt prompt(const TaskRecord& record) const override;
  /// Returns 512; 256 with examples, as lm-eval.
  [[nodiscard]] std::int64_t default_max_new_tokens() const override;
  [[nodiscard]] std::vector<std::string> stop_texts() const override;
  [[nodiscard]] std::optional<std::string> extract(std::string_view completion,
                                                   const TaskRecord& record) const override;
  /// Takes a number, or an explanation that ends with "#### NUMBER".
  [[nodiscard]] std::optional<TaskRecord> reference_record(
      std::string_view reference) const override;
  [[nodiscard]] Verdict grade(const std::optional<std::string>& answer, const TaskRecord& record,
                              CodeRunner* runner) const override;

 private:
  enum class Style : std::uint8_t { plain, cot_boxed, lm_eval_strict, lm_eval_flexible };

  [[nodiscard]] bool has_examples() const { return style_ >= Style::lm_eval_strict; }

  Style style_ = Style::plain;
};

}  // namespace jforge
