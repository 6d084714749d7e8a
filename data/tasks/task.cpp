#include "data/tasks/task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <system_error>

#include "data/tasks/code/code_tasks.h"
#include "data/tasks/math/math_answer.h"
#include "runtime/error.h"

namespace jforge {
namespace {

using TaskMaker = std::unique_ptr<Task> (*)(const TaskOptions&);

template <auto made, auto variant>
std::unique_ptr<Task> make(const TaskOptions& options) {
  return made(variant, options);
}

/// A new task needs a class, a function that makes it, and a line here.
const std::map<std::string, TaskMaker, std::less<>>& registry() {
  static const std::map<std::string, TaskMaker, std::less<>> tasks{
      {"gsm8k", make_gsm8k},
      {"humaneval", make<make_humaneval, false>},
      {"humaneval_plus", make<make_humaneval, true>},
      {"ledger", make_ledger},
      {"math", make<make_math, false>},
      {"math500", make<make_math, true>},
      {"mbpp", make<make_mbpp, MbppSet::full>},
      {"mbpp_sanitized", make<make_mbpp, MbppSet::sanitized>},
      {"mbpp_plus", make<make_mbpp, MbppSet::plus>},
      {"mbpp_plus@0.1.0", make<make_mbpp, MbppSet::plus_0_1>},
  };
  return tasks;
}

}  // namespace

std::string_view to_string(VerdictStatus status) {
  switch (status) {
    case VerdictStatus::pass:
      return "pass";
    case VerdictStatus::fail:
      return "fail";
    case VerdictStatus::timeout:
      return "timeout";
  }
  throw InternalError("unknown verdict status");
}

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const auto& [name, maker] : registry()) {
    names.push_back(name);
  }
  return names;
}

std::unique_ptr<Task> make_task(std::string_view name, const TaskOptions& options) {
  const auto found = registry().find(name);
  if (found == registry().end()) {
    throw ConfigError(
        fmt::format("unknown task '{}': known are {}", name, fmt::join(task_names(), ", ")));
  }
  return found->second(options);
}

std::filesystem::path task_file(const std::filesystem::path& data, const std::string& task,
                                const std::vector<std::string>& candidates) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(data, ignored)) {
    return data;
  }
  for (const std::string& candidate : candidates) {
    if (std::filesystem::exists(data / candidate, ignored)) {
      return data / candidate;
    }
  }
  throw DataError(fmt::format("{}: no data for task '{}': expected one of {}", data.string(), task,
                              fmt::join(candidates, ", ")));
}

std::vector<TaskRecord> load_task_records(const std::filesystem::path& data,
                                          const std::string& task,
                                          const std::vector<std::string>& candidates,
                                          const std::vector<std::string>& required) {
  std::vector<CodeField> fields;
  for (const std::string& name : required) {
    fields.push_back({name, JsonNode::Kind::text});
  }
  return load_code_records(data, task, candidates, fields);
}

}  // namespace jforge
