#pragma once

/// The decoding method that a command line names, with its settings.

#include <cstdint>
#include <span>
#include <string>

#include "workers/evaluate/decoding_settings.h"

namespace jforge {

/// command_settings() for `method`. Throws as it does, and ConfigError for a setting that the
/// method does not have, as a sweep refuses it: it would change nothing. The block size alone is
/// any method's, since every command has one.
[[nodiscard]] DecodingSettings settings_of(const std::string& method, std::int32_t block_size,
                                           std::span<const std::string> assignments);

}  // namespace jforge
