#pragma once

/// PTX arithmetic that C++ lacks or defines differently.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace jforge::emulator {

/// Rounds a · b + c down. Product and sum error (Knuth's two-sum) are exact in double, so one step
/// down suffices.
inline float fma_down(float a, float b, float c) {
  const float nearest = std::fma(a, b, c);
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double sum = product + static_cast<double>(c);
  if (!std::isfinite(sum) || std::isnan(nearest)) {
    return nearest;
  }
  const double shadow = sum - product;
  const double error = (product - (sum - shadow)) + (static_cast<double>(c) - shadow);
  if (sum == 0.0 && error == 0.0) {
    const bool cancelled = std::signbit(product) != std::signbit(c);
    return cancelled ? -0.0F : nearest;
  }
  const auto wide = static_cast<double>(nearest);
  const bool above = wide > sum || (wide == sum && error < 0.0);
  return above ? std::nextafterf(nearest, -std::numeric_limits<float>::infinity()) : nearest;
}

/// .ftz: subnormal numbers become zeros of their sign.
template <class T>
T flushed(T value) {
  return std::abs(value) < std::numeric_limits<T>::min() ? std::copysign(T{0}, value) : value;
}

/// rcp.approx.ftz.f64: from and to the upper 32 bits.
inline double reciprocal_seed(double value) {
  constexpr std::uint64_t kUpper = 0xffffffff00000000U;
  const auto upper = [](double x) {
    return std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) & kUpper);
  };
  return std::isnan(value) ? value : flushed(upper(1.0 / flushed(upper(value))));
}

/// NaN loses to any number; −0 is below +0.
template <class T>
T smaller(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(a)   ? b
           : std::isnan(b) ? a
           : a == b        ? (std::signbit(a) ? a : b)
                           : std::min(a, b);
  } else {
    return std::min(a, b);
  }
}
template <class T>
T larger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(a)   ? b
           : std::isnan(b) ? a
           : a == b        ? (std::signbit(a) ? b : a)
                           : std::max(a, b);
  } else {
    return std::max(a, b);
  }
}

/// cvt: NaN becomes 0, other values saturate.
template <class To, class From>
To saturated(From value) {
  if (std::isnan(value)) {
    return 0;
  }
  // unlike the largest integer, 2^bits is exact
  constexpr int kDigits = std::numeric_limits<To>::digits;
  const From beyond = std::ldexp(From{1}, kDigits);
  if (value >= beyond) {
    return std::numeric_limits<To>::max();
  }
  if (value <= (std::is_signed_v<To> ? -beyond : From{0})) {
    return std::numeric_limits<To>::min();
  }
  return static_cast<To>(value);
}

inline float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
/// Rounds to nearest even; NaN becomes PTX's canonical one.
inline std::uint16_t to_bfloat16_bits(float value) {
  constexpr std::uint16_t kNaN = 0x7fff;
  if (std::isnan(value)) {
    return kNaN;
  }
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}
inline float from_float16(std::uint16_t bits) {
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}
inline std::uint16_t to_float16_bits(float value) {
  return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
}

/// Shifts by the width or more leave only the sign.
template <class T>
T shift_left(T value, std::uint32_t by) {
  return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(value << by);
}
template <class T>
T shift_right(T value, std::uint32_t by) {
  constexpr std::uint32_t kMost = 8 * sizeof(T) - 1;
  return by > kMost && std::is_unsigned_v<T> ? T{0} : static_cast<T>(value >> std::min(by, kMost));
}

/// x / 0 is all ones; the one quotient that overflows wraps.
template <class T>
T quotient(T a, T b) {
  if (b == 0) {
    return static_cast<T>(-1);
  }
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) {
      return static_cast<T>(std::make_unsigned_t<T>{0} - static_cast<std::make_unsigned_t<T>>(a));
    }
  }
  return static_cast<T>(a / b);
}
template <class T>
T remainder_of(T a, T b) {
  if (b == 0) {
    return a;
  }
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) {
      return 0;
    }
  }
  return static_cast<T>(a % b);
}

template <class T>
T high_product(T a, T b) {
  using Wide =
      std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;  // NOLINT: no other
  return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> (8 * sizeof(T)));
}

/// prmt.b32: four of the eight bytes of b:a; bit 3 of a choice replicates the byte's sign.
inline std::uint32_t permuted(std::uint32_t a, std::uint32_t b, std::uint32_t choices) {
  const std::uint64_t bytes = (std::uint64_t{b} << 32) | a;
  std::uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const std::uint32_t choice = choices >> (4 * i) & 15U;
    auto byte = static_cast<std::uint32_t>(bytes >> (8 * (choice & 7U)) & 0xffU);
    if ((choice & 8U) != 0) {
      byte = (byte & 0x80U) != 0 ? 0xffU : 0U;
    }
    result |= byte << (8 * i);
  }
  return result;
}

/// lop3.b32: looks up (a, b, c) in the table for each bit.
inline std::uint32_t looked_up(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                               std::uint32_t table) {
  std::uint32_t result = 0;
  for (unsigned row = 0; row < 8; ++row) {
    if ((table >> row & 1U) != 0) {
      result |=
          ((row & 4U) != 0 ? a : ~a) & ((row & 2U) != 0 ? b : ~b) & ((row & 1U) != 0 ? c : ~c);
    }
  }
  return result;
}

/// bfe: `length` bits from `begin` on, sign-extended for signed types.
template <class T>
T bit_field(T value, std::uint32_t begin, std::uint32_t length) {
  constexpr std::uint32_t kBits = 8 * sizeof(T);
  begin &= 0xffU;
  length &= 0xffU;
  if (length == 0) {
    return 0;
  }
  const std::uint32_t last = std::min(begin + length - 1, kBits - 1);
  const bool sign = std::is_signed_v<T> && (static_cast<std::uint64_t>(value) >> last & 1U) != 0;
  const auto bits = static_cast<std::make_unsigned_t<T>>(value);
  auto result = begin < kBits ? static_cast<std::make_unsigned_t<T>>(bits >> begin)
                              : std::make_unsigned_t<T>{0};
  if (length < kBits) {
    const auto mask =
        static_cast<std::make_unsigned_t<T>>((std::make_unsigned_t<T>{1} << length) - 1);
    result = static_cast<std::make_unsigned_t<T>>(result & mask);
    const std::uint32_t kept = begin < kBits ? std::min(length, kBits - begin) : 0;
    if (sign) {
      result = static_cast<std::make_unsigned_t<T>>(result |
                                                    ~((std::make_unsigned_t<T>{1} << kept) - 1));
    }
  }
  return static_cast<T>(result);
}

/// bfi: b with the bits from `begin` on replaced by a's lowest `length`.
template <class T>
T with_bit_field(T a, T b, std::uint32_t begin, std::uint32_t length) {
  constexpr std::uint32_t kBits = 8 * sizeof(T);
  begin &= 0xffU;
  length &= 0xffU;
  if (begin >= kBits || length == 0) {
    return b;
  }
  const T ones = length >= kBits ? ~T{0} : (T{1} << length) - 1;
  return (b & ~(ones << begin)) | ((a & ones) << begin);
}

inline std::uint32_t reversed_bits(std::uint32_t value) {
  std::uint32_t result = 0;
  for (unsigned i = 0; i < 32; ++i) {
    result |= (value >> i & 1U) << (31 - i);
  }
  return result;
}

}  // namespace jforge::emulator
