#pragma once

#include "data/tasks/math/gsm8k_task.h"
#include "data/tasks/task.h"

namespace jforge {

/// The quickstart's arithmetic word problems, made by launch/quickstart/make_word_problems.py:
/// records {question, answer}, the gold number behind "#### " in the answer. They are drawn from a
/// few dozen templates, so their figures compare with nothing published, GSM8K's least of all.
///
/// The only prompt style is "plain": the question alone as the user turn. Numbers are taken from a
/// completion and compared by GSM8K's plain rule (Gsm8kTask).
class WordProblemsTask final : public Task {
 public:
  /// ConfigError naming the style when `options.prompt_style` is unknown.
  explicit WordProblemsTask(const TaskOptions& options);

  [[nodiscard]] std::string name() const override { return "word_problems"; }
  /// "word_problems/number/extract-3": the rule's version is that of Gsm8kTask.
  [[nodiscard]] std::string version() const override;
  /// word_problems/test.jsonl(.gz) or test.jsonl(.gz) under a directory, or a file of that form.
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path& data) const override;
  [[nodiscard]] TaskPrompt prompt(const TaskRecord& record) const override;
  /// 64: the longest answer that the script writes has fewer tokens.
  [[nodiscard]] std::int64_t default_max_new_tokens() const override { return 64; }
  [[nodiscard]] std::vector<std::string> stop_texts() const override { return {}; }
  [[nodiscard]] std::optional<std::string> extract(std::string_view completion,
                                                   const TaskRecord& record) const override;
  /// As gsm8k.
  [[nodiscard]] std::optional<TaskRecord> reference_record(
      std::string_view reference) const override;
  [[nodiscard]] Verdict grade(const std::optional<std::string>& answer, const TaskRecord& record,
                              CodeRunner* runner) const override;

 private:
  Gsm8kTask numbers_;
};

}  // namespace jforge
