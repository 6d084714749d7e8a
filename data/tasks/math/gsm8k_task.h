#pragma once

#include "data/tasks/task.h"

namespace jforge {

/// Grade-school mathematics (Cobbe et al., "Training verifiers to solve math word problems", 2021):
/// records {question, answer}, the gold number behind "#### " in the answer.
///
/// Prompt styles:
///  - "plain": the question alone as the user turn.
///  - "cot_boxed" (default): adds a line that asks for steps and a boxed answer.
///  - "lm-eval" and "lm-eval-flexible": raw text "Question: {q}\nAnswer:" behind five examples of
///    the same form, drawn for each question from gsm8k/train.jsonl(.gz) beside the test file as
///    lm-eval draws them (seed 1234, in the file's order); ended by "Question:", "</s>" or
///    "<|im_end|>".
///
/// Rules extract-4 (plain) and extract-5 (cot_boxed): nothing counts behind the first line "#### N"
/// (GSM8K's own form). plain takes the number right behind the last "####" that has one there (a
/// "####" before words is a heading), else the number of the last \boxed{…} (boxed_number), else
/// the last number of the completion, or behind a box that holds an expression; cot_boxed takes the
/// box before the mark. Numbers are compared exactly (12.0 = 12, $1,200 = 1200).
///
/// Rule strict-match (lm-eval): the first match of "#### (\-?[0-9\.\,]+)"; flexible-extract
/// (lm-eval-flexible): the last match of "(-?[$0-9.,]{2,})|(-?[0-9]+)". Both are compared as that
/// harness does, as text without ",", "$" and a final "." (12.0 is not 12).
class Gsm8kTask final : public Task {
 public:
  /// ConfigError naming the styles when `options.prompt_style` is unknown, the new name when it is
  /// an old one.
  explicit Gsm8kTask(const TaskOptions& options);

  [[nodiscard]] std::string name() const override { return "gsm8k"; }
  [[nodiscard]] std::string version() const override;
  /// DataError naming `file` and the record whose answer has no number behind "####".
  static void expect_golds(const std::vector<TaskRecord>& records,
                           const std::filesystem::path& file);
  /// gsm8k/test.jsonl(.gz) or test.jsonl(.gz) under a directory, or a file of that form. DataError
  /// also as expect_golds(); with examples when there are no five in the training file.
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path& data) const override;
  [[nodiscard]] TaskPrompt prompt(const TaskRecord& record) const override;
  /// 512; with examples 256, the harness's own limit.
  [[nodiscard]] std::int64_t default_max_new_tokens() const override;
  [[nodiscard]] std::vector<std::string> stop_texts() const override;
  [[nodiscard]] std::optional<std::string> extract(std::string_view completion,
                                                   const TaskRecord& record) const override;
  /// A number, or an explanation that ends with "#### NUMBER".
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
