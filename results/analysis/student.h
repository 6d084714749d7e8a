#pragma once

/// Student's t distribution, as far as intervals need it.

#include <array>
#include <cstdint>

namespace jforge {

/// The 97.5 % quantile at `freedom` ≥ 1 degrees of freedom: half of a 95 % interval, in standard
/// errors. To 1e-3: from a table, beyond it by Cornish and Fisher's expansion (Abramowitz and
/// Stegun 26.7.5).
[[nodiscard]] constexpr double student_quantile(std::int64_t freedom) {
  constexpr std::array<double, 9> kTable{12.706, 4.303, 3.182, 2.776, 2.571,
                                         2.447,  2.365, 2.306, 2.262};
  if (freedom <= static_cast<std::int64_t>(kTable.size())) {
    return kTable[static_cast<std::size_t>(freedom - 1)];
  }
  constexpr double z = 1.959964;
  constexpr double z3 = z * z * z;
  constexpr double z5 = z3 * z * z;
  constexpr double z7 = z5 * z * z;
  const auto v = static_cast<double>(freedom);
  return z + (z3 + z) / (4 * v) + (5 * z5 + 16 * z3 + 3 * z) / (96 * v * v) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * v * v * v);
}

}  // namespace jforge
