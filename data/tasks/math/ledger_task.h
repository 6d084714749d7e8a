#pragma once

#include "data/tasks/math/gsm8k_task.h"

namespace jforge {

/// The ledgers of launch/quickstart/make_ledger.py: {question, answer}, the gold number after
/// "#### ". They come from a few dozen templates, so scores do not compare with published ones. The
/// only prompt style is "plain"; extraction and comparison are Gsm8kTask's for plain.
class LedgerTask final : public Gsm8kTask {
 public:
  /// Throws ConfigError naming the style if `options.prompt_style` is unknown.
  explicit LedgerTask(const TaskOptions& options);

  [[nodiscard]] std::string name() const override { return "ledger"; }
  /// Returns for example "ledger/number/extract-4"; the rule is Gsm8kTask's.
  [[nodiscard]] std::string version() const override;
  /// Reads ledger/test.jsonl(.gz), test.jsonl(.gz) or a file of that form.
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path& data) const override;
  /// Exceeds the script's longest answers.
  [[nodiscard]] std::int64_t default_max_new_tokens() const override { return 512; }
  [[nodiscard]] std::vector<std::string> stop_texts() const override { return {}; }
};

}  // namespace jforge
