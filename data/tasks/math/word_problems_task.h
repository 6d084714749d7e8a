#pragma once

#include <cstdint>

#include "data/tasks/math/gsm8k_task.h"

namespace jforge {

/// Generated arithmetic problems {question, answer}, the gold number after "#### ". `word_problems`
/// (launch/quickstart/make_word_problems.py) are the quickstart's; `ledger`
/// (launch/quickstart/make_ledger.py) has answers of many lines. Both come from a few dozen
/// templates, so scores do not compare with published ones. The only prompt style is "plain";
/// extraction and comparison are Gsm8kTask's for plain.
class WordProblemsTask final : public Gsm8kTask {
 public:
  enum class Problems : std::uint8_t { word_problems, ledger };

  /// Throws ConfigError naming the style if `options.prompt_style` is unknown.
  WordProblemsTask(Problems problems, const TaskOptions& options);

  [[nodiscard]] std::string name() const override {
    return problems_ == Problems::ledger ? "ledger" : "word_problems";
  }
  /// Returns for example "word_problems/number/extract-4"; the rule is Gsm8kTask's.
  [[nodiscard]] std::string version() const override;
  /// Reads NAME/test.jsonl(.gz), test.jsonl(.gz) or a file of that form.
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path& data) const override;
  /// Exceeds the scripts' longest answers.
  [[nodiscard]] std::int64_t default_max_new_tokens() const override {
    return problems_ == Problems::ledger ? 512 : 64;
  }
  [[nodiscard]] std::vector<std::string> stop_texts() const override { return {}; }

 private:
  Problems problems_;
};

}  // namespace jforge
