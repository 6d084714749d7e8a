#pragma once

/// Elements of float32 and bfloat16 tensors as kernels read and write them: widened exactly,
/// computed with in float32, rounded once. The type is the tensor's, not the kernel's: a launch's
/// lanes all take the same way, and every mixture that a residual stream of one type and branches
/// of another make is one kernel.

#include <cstdint>

#include "model/kernels/cuda/block_group.h"
#include "runtime/tensor/bfloat16.h"

namespace jforge {

/// to_float() of bfloat16.h where kernels run.
[[nodiscard]] JFORGE_DEVICE inline float widen(BFloat16 value) {
  return __builtin_bit_cast(float, std::uint32_t{value.bits} << 16);
}

/// to_bfloat16() of bfloat16.h where kernels run: the same bits for every value.
[[nodiscard]] JFORGE_DEVICE inline BFloat16 round_to_bfloat16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return {static_cast<std::uint16_t>(is_nan ? (bits >> 16) | 0x0040U
                                            : (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

/// Read-only elements.
struct FloatSource {
  const void* data = nullptr;
  bool narrow = false;  ///< bfloat16

  [[nodiscard]] JFORGE_DEVICE float operator[](std::int64_t i) const {
    return narrow ? widen(static_cast<const BFloat16*>(data)[i])
                  : static_cast<const float*>(data)[i];
  }
};

struct FloatTarget {
  void* data = nullptr;
  bool narrow = false;  ///< bfloat16

  [[nodiscard]] JFORGE_DEVICE float operator[](std::int64_t i) const {
    return narrow ? widen(static_cast<const BFloat16*>(data)[i])
                  : static_cast<const float*>(data)[i];
  }
  JFORGE_DEVICE void set(std::int64_t i, float value) const {
    if (narrow) {
      static_cast<BFloat16*>(data)[i] = round_to_bfloat16(value);
    } else {
      static_cast<float*>(data)[i] = value;
    }
  }
};

}  // namespace jforge
