#pragma once

/// Whether an answer to a mathematics problem is the right one, by the values themselves. Native,
/// bounded and deterministic. The published string rules are in math_string_rules.h.

#include <cstdint>
#include <string>
#include <string_view>

namespace jforge {

struct MathComparison {
  bool equal = false;
  /// How it was decided. Equal: "text" or "value". Unequal: "different", or why the values were not
  /// compared ("too much work").
  std::string rule;
  std::int64_t steps =
      0;  ///< Work done on values; a little over 2 * MathAlgebra::kMaxSteps at most.
};

/// Longest answer, in bytes, that is looked at; a longer one is wrong.
inline constexpr std::size_t kMaxMathAnswer = 4096;

/// Compares an answer with the trusted one. Equal as written, but for blanks, sizes and
/// spellings of commands; or else both are read as mathematical objects (read_math_value) and
/// compared exactly: lists and sets in any order, lists counting how often an element occurs;
/// points and intervals in their order with their brackets; equations up to a constant factor; "x =
/// 5" as 5; column vectors as points; "50\%" as 50 or 1/2; degrees as their number; units only when
/// both name one; numerals with a base only when digits and base agree; texts without case. Never
/// throws for what stands in an answer; work is bounded by counters.
[[nodiscard]] MathComparison compare_math(std::string_view gold, std::string_view answer);

/// The values alone.
[[nodiscard]] MathComparison compare_math_values(std::string_view gold, std::string_view answer);

}  // namespace jforge
