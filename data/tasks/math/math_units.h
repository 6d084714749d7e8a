#pragma once

/// Units behind the numbers of answers.

#include <optional>
#include <string>
#include <string_view>

namespace jforge {

/// Canonical form of a unit or of what is counted: "centimeters" and "cm" are "cm"; words that only
/// count or say nothing ("ways", "units", "degrees") are "". Nothing for other words. Case counts
/// not.
[[nodiscard]] std::optional<std::string> canonical_unit(std::string_view word);

/// Power of ten that a word multiplies the number before it by: 6 for "million". Nothing for other
/// words. "dozen" is none.
[[nodiscard]] std::optional<int> number_scale(std::string_view word);

/// The number that a word names, from "zero" to "twelve". Nothing for other words.
[[nodiscard]] std::optional<int> number_word(std::string_view word);

/// Words that change the number before them ("million", "dozen"): never dropped as a unit.
[[nodiscard]] bool changes_number(std::string_view word);

}  // namespace jforge
