#include "workers/evaluate/evaluate_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "data/tasks/task.h"
#include "model/decoding/decoding_method.h"
#include "runtime/error.h"

namespace jforge {

namespace {

constexpr std::int32_t kMostSpeedRepeats = 1000;

void refuse_repetition(const std::vector<std::string>& names, const char* key) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (std::find(names.begin(), name, *name) != name) {
      throw ConfigError(fmt::format("{}: \"{}\" is named twice; name it once", key, *name));
    }
  }
}

/// Adds the key to the message of a ConfigError.
template <class LookUp>
void check_named(const char* key, const LookUp& look_up) {
  try {
    look_up();
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", key, error.what()));
  }
}

}  // namespace

TaskChoice EvaluateConfig::choice(std::string_view entry) const {
  const std::size_t colon = entry.find(':');
  TaskChoice task{.label = std::string(entry),
                  .name = std::string(entry.substr(0, colon)),
                  .prompt_style = prompt_style};
  if (colon != std::string_view::npos) {
    task.prompt_style = entry.substr(colon + 1);
    if (task.name.empty() || task.prompt_style.empty()) {
      throw ConfigError(
          fmt::format("evaluate.tasks: \"{}\" is neither TASK nor TASK:STYLE; write for example "
                      "\"gsm8k:cot_boxed\"",
                      entry));
    }
  }
  return task;
}

void EvaluateConfig::validate() const {
  validate_decoding_settings(decoding, "evaluate");
  if (samples_per_problem < 1) {
    throw ConfigError(fmt::format("evaluate.samples_per_problem is {}; it must be at least 1",
                                  samples_per_problem));
  }
  if (samples_per_problem > 1 && std::get<double>(decoding.at("temperature")) == 0) {
    throw ConfigError(
        fmt::format("evaluate.samples_per_problem is {}: greedy answers to a problem are all the "
                    "same; set evaluate.temperature above 0",
                    samples_per_problem));
  }
  if (max_new_tokens &&
      (*max_new_tokens < 1 || *max_new_tokens > std::numeric_limits<std::int32_t>::max())) {
    throw ConfigError(fmt::format("evaluate.max_new_tokens is {}; it must be from 1 to {}",
                                  *max_new_tokens, std::numeric_limits<std::int32_t>::max()));
  }
  if (limit && *limit < 1) {
    throw ConfigError(fmt::format("evaluate.limit is {}; it must be at least 1", *limit));
  }
  if (batch_prompts < 1) {
    throw ConfigError(
        fmt::format("evaluate.batch_prompts is {}; it must be at least 1", batch_prompts));
  }
  if (speed_problems < 0) {
    throw ConfigError(
        fmt::format("evaluate.speed_problems is {}; it must be 0 (speeds are not measured) or more",
                    speed_problems));
  }
  if (speed_repeats < 2 || speed_repeats > kMostSpeedRepeats) {
    throw ConfigError(
        fmt::format("evaluate.speed_repeats is {}; it must be from 2, below which a speed has no "
                    "interval, to {}; evaluate.speed_problems = 0 measures none",
                    speed_repeats, kMostSpeedRepeats));
  }
  refuse_repetition(tasks, "evaluate.tasks");
  refuse_repetition(methods, "evaluate.methods");
  for (const std::string& method : methods) {
    check_named("evaluate.methods", [&] { (void)make_decoding_method(method, decoding, 0); });
  }
  for (const std::string& entry : tasks) {
    const TaskChoice task = choice(entry);
    check_named("evaluate.tasks", [&] { (void)make_task(task.name); });
    check_named(entry == task.name ? "evaluate.prompt_style" : "evaluate.tasks",
                [&] { (void)make_task(task.name, {.prompt_style = task.prompt_style}); });
  }
  if (tasks.empty()) {
    return;
  }
  if (methods.empty()) {
    throw ConfigError("evaluate.methods is empty; name at least one, for example [\"ar\"]");
  }
  if (data.empty()) {
    throw ConfigError("evaluate.data is missing: name the directory that holds the benchmarks");
  }
}

}  // namespace jforge
