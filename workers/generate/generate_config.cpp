#include "workers/generate/generate_config.h"

#include <fmt/format.h>

#include "runtime/error.h"

namespace jforge {

void GenerateConfig::validate() const {
  const auto at_least_one = [](const char* key, double value) {
    if (value < 1) {
      throw ConfigError(fmt::format("generate.{} = {} must be at least 1", key, value));
    }
  };
  at_least_one("max_new_tokens", static_cast<double>(max_new_tokens));
  at_least_one("batch_prompts", batch_prompts);
  at_least_one("prompts_per_lease", static_cast<double>(prompts_per_lease));
  at_least_one("lease_seconds", lease_seconds);
}

}  // namespace jforge
