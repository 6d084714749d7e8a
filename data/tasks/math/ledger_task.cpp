#include "data/tasks/math/ledger_task.h"

#include <fmt/format.h>

#include "runtime/error.h"

namespace jforge {

LedgerTask::LedgerTask(const TaskOptions& options)
    : Gsm8kTask(TaskOptions{.prompt_style = "plain"}) {
  if (!options.prompt_style.empty() && options.prompt_style != "plain") {
    throw ConfigError(fmt::format(
        "task ledger: unknown prompt style '{}': the only one is plain (the question alone)",
        options.prompt_style));
  }
}

std::string LedgerTask::version() const {
  const std::string rule = Gsm8kTask::version();
  return "ledger/number" + rule.substr(rule.rfind('/'));
}

std::vector<TaskRecord> LedgerTask::load(const std::filesystem::path& data) const {
  const std::vector<std::string> candidates{"ledger/test.jsonl", "ledger/test.jsonl.gz",
                                            "test.jsonl", "test.jsonl.gz"};
  std::vector<TaskRecord> records =
      load_task_records(data, "ledger", candidates, {"question", "answer"});
  Gsm8kTask::expect_golds(records, task_file(data, "ledger", candidates));
  return records;
}

}  // namespace jforge
