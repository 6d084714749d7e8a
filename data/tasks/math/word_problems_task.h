#pragma once

#include <cstdint>

#include "data/tasks/math/gsm8k_task.h"
#include "data/tasks/task.h"

namespace jforge {

/// Home-made arithmetic problems: records {question, answer}, the gold number behind "#### " in the
/// answer. `word_problems` are the quickstart's, made by launch/quickstart/make_word_problems.py;
/// `ledger` ones have answers of many lines, made by launch/quickstart/make_ledger.py. Both are
/// drawn from a few dozen templates, so their figures compare with nothing published, GSM8K's least
/// of all.
///
/// The only prompt style is "plain": the question alone as the user turn. Numbers are taken from a
/// completion and compared by GSM8K's plain rule (Gsm8kTask).
class WordProblemsTask final : public Task {
 public:
  enum class Problems : std::uint8_t { word_problems, ledger };

  /// ConfigError naming the style when `options.prompt_style` is unknown.
  WordProblemsTask(Problems problems, const TaskOptions& options);

  [[nodiscard]] std::string name() const override {
    return problems_ == Problems::ledger ? "ledger" : "word_problems";
  }
  /// "word_problems/number/extract-4": the rule's version is that of Gsm8kTask.
  [[nodiscard]] std::string version() const override;
  /// NAME/test.jsonl(.gz) or test.jsonl(.gz) under a directory, or a file of that form.
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path& data) const override;
  [[nodiscard]] TaskPrompt prompt(const TaskRecord& record) const override;
  /// 64 of word_problems, 512 of ledger: the longest answer that the scripts write has fewer tokens
  /// (of the bundled tokenizer, and of one that knows English words).
  [[nodiscard]] std::int64_t default_max_new_tokens() const override {
    return problems_ == Problems::ledger ? 512 : 64;
  }
  [[nodiscard]] std::vector<std::string> stop_texts() const override { return {}; }
  [[nodiscard]] std::optional<std::string> extract(std::string_view completion,
                                                   const TaskRecord& record) const override;
  /// As gsm8k.
  [[nodiscard]] std::optional<TaskRecord> reference_record(
      std::string_view reference) const override;
  [[nodiscard]] Verdict grade(const std::optional<std::string>& answer, const TaskRecord& record,
                              CodeRunner* runner) const override;

 private:
  Problems problems_;
  Gsm8kTask numbers_;
};

}  // namespace jforge
