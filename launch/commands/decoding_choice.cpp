#include "launch/commands/decoding_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "runtime/error.h"
#include "workers/evaluate/decoding_method.h"

namespace jforge {

DecodingSettings settings_of(const std::string& method, std::int32_t block_size,
                             std::span<const std::string> assignments) {
  DecodingSettings settings = command_settings(block_size, assignments);
  const std::vector<std::string> own = decoding_method_keys(method);
  for (const auto& [key, value] : settings) {
    if (key != "block_size" && std::ranges::find(own, key) == own.end()) {
      throw ConfigError(fmt::format("--setting {}: method \"{}\" has no such setting; it has {}",
                                    key, method, fmt::join(own, ", ")));
    }
  }
  return settings;
}

}  // namespace jforge
