#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace jforge {

/// Returns the name of `known` with the least Levenshtein distance in bytes (the first of equals).
/// Returns nothing if more than a third of `name`, rounded up, is wrong, because it would mislead.
[[nodiscard]] std::optional<std::string> nearest_name(std::string_view name,
                                                      std::span<const std::string> known);

/// Returns "; did you mean NAME?", or "" if none is near.
[[nodiscard]] std::string did_you_mean(std::string_view name, std::span<const std::string> known);

}  // namespace jforge
