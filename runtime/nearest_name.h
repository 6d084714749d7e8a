#pragma once

/// "Did you mean …?": the known name that a mistyped one most likely stands for.

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace jforge {

/// The name of `known` with the least edit distance to `name` (Levenshtein, in bytes; the first of
/// equals); nothing unless at most a third of `name`'s bytes, rounded up, are wrong: a suggestion
/// that is far off misleads.
[[nodiscard]] std::optional<std::string> nearest_name(std::string_view name,
                                                      std::span<const std::string> known);

/// "; did you mean NAME?", or "" when none is near.
[[nodiscard]] std::string did_you_mean(std::string_view name, std::span<const std::string> known);

}  // namespace jforge
