#include "data/tasks/task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <system_error>

#include "data/prompts/record_stream.h"
#include "data/tasks/gsm8k_task.h"
#include "runtime/error.h"

namespace jforge {
namespace {

using TaskMaker = std::unique_ptr<Task> (*)(const TaskOptions&);

/// Every task of the program. A new task is one class and one line here.
const std::map<std::string, TaskMaker, std::less<>>& registry() {
  static const std::map<std::string, TaskMaker, std::less<>> tasks{
      {"gsm8k",
       [](const TaskOptions& options) -> std::unique_ptr<Task> {
         return std::make_unique<Gsm8kTask>(options);
       }},
  };
  return tasks;
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

std::vector<TaskRecord> load_task_records(const std::filesystem::path& data,
                                          const std::string& task,
                                          const std::vector<std::string>& candidates,
                                          const std::vector<std::string>& required) {
  const std::filesystem::path path = task_file(data, task, candidates);
  RecordStream stream(path);
  RawRecord raw;
  simdjson::dom::parser parser;
  std::vector<TaskRecord> records;
  const auto refuse = [&](const std::string& what) {
    throw DataError(fmt::format("{}:{}: {}", path.string(), raw.line, what));
  };
  while (stream.next(raw)) {
    simdjson::dom::object object;
    if (const auto error = parser.parse(raw.text).get_object().get(object)) {
      refuse(fmt::format("not a JSON object: {}", simdjson::error_message(error)));
    }
    TaskRecord record;
    record.id = fmt::format("{}/{}", task, records.size());
    for (const std::string& field : required) {
      std::string_view text;
      if (object.at_key(field).get_string().get(text) != simdjson::SUCCESS) {
        refuse(fmt::format("no text field '{}', which task '{}' needs", field, task));
      }
      record.fields.emplace(field, text);
    }
    records.push_back(std::move(record));
  }
  if (records.empty()) {
    throw DataError(fmt::format("{}: holds no problem for task '{}'", path.string(), task));
  }
  return records;
}

}  // namespace jforge
