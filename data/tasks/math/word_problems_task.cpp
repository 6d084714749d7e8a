#include "data/tasks/math/word_problems_task.h"

#include <fmt/format.h>

#include "runtime/error.h"

namespace jforge {

WordProblemsTask::WordProblemsTask(Problems problems, const TaskOptions& options)
    : problems_(problems), numbers_(TaskOptions{.prompt_style = "plain"}) {
  if (!options.prompt_style.empty() && options.prompt_style != "plain") {
    throw ConfigError(fmt::format(
        "task {}: unknown prompt style '{}': the only one is plain (the question alone)", name(),
        options.prompt_style));
  }
}

std::string WordProblemsTask::version() const {
  const std::string rule = numbers_.version();
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

TaskPrompt WordProblemsTask::prompt(const TaskRecord& record) const {
  return numbers_.prompt(record);
}

std::optional<std::string> WordProblemsTask::extract(std::string_view completion,
                                                     const TaskRecord& record) const {
  return numbers_.extract(completion, record);
}

std::optional<TaskRecord> WordProblemsTask::reference_record(std::string_view reference) const {
  return numbers_.reference_record(reference);
}

Verdict WordProblemsTask::grade(const std::optional<std::string>& answer, const TaskRecord& record,
                                CodeRunner* runner) const {
  return numbers_.grade(answer, record, runner);
}

}  // namespace jforge
