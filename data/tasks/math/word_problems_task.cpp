#include "data/tasks/math/word_problems_task.h"

#include <fmt/format.h>

#include "runtime/error.h"

namespace jforge {

WordProblemsTask::WordProblemsTask(Problems problems, const TaskOptions& options)
    : Gsm8kTask(TaskOptions{.prompt_style = "plain"}), problems_(problems) {
  if (!options.prompt_style.empty() && options.prompt_style != "plain") {
    throw ConfigError(fmt::format(
        "task {}: unknown prompt style '{}': the only one is plain (the question alone)", name(),
        options.prompt_style));
  }
}

std::string WordProblemsTask::version() const {
  const std::string rule = Gsm8kTask::version();
  return name() + "/number" + rule.substr(rule.rfind('/'));
}

std::vector<TaskRecord> WordProblemsTask::load(const std::filesystem::path& data) const {
  const std::vector<std::string> candidates{name() + "/test.jsonl", name() + "/test.jsonl.gz",
                                            "test.jsonl", "test.jsonl.gz"};
  std::vector<TaskRecord> records =
      load_task_records(data, name(), candidates, {"question", "answer"});
  Gsm8kTask::expect_golds(records, task_file(data, name(), candidates));
  return records;
}

}  // namespace jforge
