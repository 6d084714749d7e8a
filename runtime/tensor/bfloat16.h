#pragma once

/// bfloat16: the upper half of a float32 (8 exponent bits, 7 fraction bits). Arithmetic is in
/// float32.

#include <bit>
#include <cstdint>

namespace jforge {

struct BFloat16 {
  std::uint16_t bits = 0;
  bool operator==(const BFloat16&) const = default;
};

/// Exact.
[[nodiscard]] constexpr float to_float(BFloat16 value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Rounds to nearest even. NaN stays a (quiet) NaN; too large values become infinite.
[[nodiscard]] constexpr BFloat16 to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return {
        static_cast<std::uint16_t>((bits >> 16) | 0x0040U)};  // Rounding could turn NaN into Inf.
  }
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

}  // namespace jforge
