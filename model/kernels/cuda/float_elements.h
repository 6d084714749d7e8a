#pragma once

/// Elements of float32 and bfloat16 tensors: widened exactly, computed in float32, rounded once.
/// The type is checked at run time without divergence, so one kernel serves all mixtures.

#include <cstdint>

#include "runtime/tensor/bfloat16.h"

namespace jforge {

[[nodiscard]] __device__ inline float widen(BFloat16 value) {
  return __builtin_bit_cast(float, std::uint32_t{value.bits} << 16);
}

/// to_bfloat16() for kernels.
[[nodiscard]] __device__ inline BFloat16 round_to_bfloat16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return {static_cast<std::uint16_t>(is_nan ? (bits >> 16) | 0x0040U
                                            : (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

/// Adjacent elements per lane if aligned.
inline constexpr int kWordElements = 8;

/// 16 bytes, moved by one instruction.
struct alignas(16) [[gnu::may_alias]] MemoryWord {
  std::uint32_t bits[4];
};

/// Whether all tensors are aligned for MemoryWord.
template <class... Elements>
[[nodiscard]] bool begin_words(const Elements&... elements) {
  return ((reinterpret_cast<std::uintptr_t>(elements.data) % sizeof(MemoryWord) == 0) && ...);
}

template <int kCount>
__device__ void read_elements(const void* data, bool narrow, std::int64_t i,
                              float (&values)[kCount]) {
  static_assert(kCount == 1 || kCount == kWordElements);
  if constexpr (kCount == 1) {
    values[0] =
        narrow ? widen(static_cast<const BFloat16*>(data)[i]) : static_cast<const float*>(data)[i];
  } else if (narrow) {
    const MemoryWord word =
        *reinterpret_cast<const MemoryWord*>(static_cast<const BFloat16*>(data) + i);
    for (int pair = 0; pair < 4; ++pair) {
      values[2 * pair] = __builtin_bit_cast(float, word.bits[pair] << 16);
      values[2 * pair + 1] = __builtin_bit_cast(float, word.bits[pair] & 0xFFFF0000U);
    }
  } else {
    const auto* const words =
        reinterpret_cast<const MemoryWord*>(static_cast<const float*>(data) + i);
    const MemoryWord both[2] = {words[0], words[1]};
    for (int e = 0; e < kWordElements; ++e) {
      values[e] = __builtin_bit_cast(float, both[e / 4].bits[e % 4]);
    }
  }
}

struct FloatSource {
  const void* data = nullptr;
  bool narrow = false;  ///< bfloat16

  [[nodiscard]] __device__ float operator[](std::int64_t i) const {
    return narrow ? widen(static_cast<const BFloat16*>(data)[i])
                  : static_cast<const float*>(data)[i];
  }
  template <int kCount>
  __device__ void read(std::int64_t i, float (&values)[kCount]) const {
    read_elements(data, narrow, i, values);
  }
};

struct FloatTarget {
  void* data = nullptr;
  bool narrow = false;  ///< bfloat16

  [[nodiscard]] __device__ float operator[](std::int64_t i) const {
    return narrow ? widen(static_cast<const BFloat16*>(data)[i])
                  : static_cast<const float*>(data)[i];
  }
  __device__ void set(std::int64_t i, float value) const {
    if (narrow) {
      static_cast<BFloat16*>(data)[i] = round_to_bfloat16(value);
    } else {
      static_cast<float*>(data)[i] = value;
    }
  }
  template <int kCount>
  __device__ void read(std::int64_t i, float (&values)[kCount]) const {
    read_elements(data, narrow, i, values);
  }
  template <int kCount>
  __device__ void write(std::int64_t i, const float (&values)[kCount]) const {
    static_assert(kCount == 1 || kCount == kWordElements);
    if constexpr (kCount == 1) {
      set(i, values[0]);
    } else if (narrow) {
      MemoryWord word;
      for (int pair = 0; pair < 4; ++pair) {
        word.bits[pair] = round_to_bfloat16(values[2 * pair]).bits |
                          static_cast<std::uint32_t>(round_to_bfloat16(values[2 * pair + 1]).bits)
                              << 16;
      }
      *reinterpret_cast<MemoryWord*>(static_cast<BFloat16*>(data) + i) = word;
    } else {
      auto* const words = reinterpret_cast<MemoryWord*>(static_cast<float*>(data) + i);
      for (int half = 0; half < 2; ++half) {
        MemoryWord word;
        for (int e = 0; e < 4; ++e) {
          word.bits[e] = __builtin_bit_cast(std::uint32_t, values[4 * half + e]);
        }
        words[half] = word;
      }
    }
  }
};

}  // namespace jforge
