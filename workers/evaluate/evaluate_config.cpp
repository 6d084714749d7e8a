#include "workers/evaluate/evaluate_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "data/tasks/task.h"
#include "runtime/error.h"
#include "workers/evaluate/decoding_method.h"

namespace jforge {

namespace {

void refuse_repetition(const std::vector<std::string>& names, const char* key) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (std::find(names.begin(), name, *name) != name) {
      throw ConfigError(fmt::format("{}: \"{}\" is named twice; name it once", key, *name));
    }
  }
}

/// Runs a look-up that throws ConfigError and puts the key before its message.
template <class LookUp>
void check_named(const char* key, const LookUp& look_up) {
  try {
    look_up();
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", key, error.what()));
  }
}

}  // namespace

void EvaluateConfig::validate() const {
  if (block_size < 1) {
    throw ConfigError(fmt::format("evaluate.block_size is {}; it must be at least 1", block_size));
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
  refuse_repetition(tasks, "evaluate.tasks");
  refuse_repetition(methods, "evaluate.methods");
  for (const std::string& method : methods) {
    check_named("evaluate.methods", [&] { (void)make_decoding_method(method, *this, 0); });
  }
  for (const std::string& task : tasks) {
    check_named("evaluate.tasks", [&] { (void)make_task(task); });
    check_named("evaluate.prompt_style",
                [&] { (void)make_task(task, {.prompt_style = prompt_style}); });
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
