#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "model/kernels/cuda/device_code.h"

namespace jforge {

/// Upper bound of gumbel_noise(): −log(−log(1 − 2⁻³³)) is 22.88.
inline constexpr double kMostGumbelNoise = 23;

/// Gumbel noise from 32 uniform bits. Host and device logarithms differ by up to two ulps.
[[nodiscard]] JFORGE_DEVICE_AND_HOST inline double gumbel_noise(std::uint32_t bits) {
  return -log(-log((static_cast<double>(bits) + 0.5) * 0x1.0p-32));
}

/// Upper bound of gumbel_noise(bits) without logarithms: −log(−log u) ≤ −log(1 − u), and 1 − u >
/// 2^−(z + 1) for z leading ones of `bits`.
[[nodiscard]] JFORGE_DEVICE_AND_HOST inline double gumbel_bound(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  const int ones = __clz(static_cast<int>(~bits));
#else
  const int ones = std::countl_one(bits);
#endif
  constexpr double kLogOf2 = 0x1.62e42fefa39efp-1;
  return (ones + 1) * kLogOf2;
}

[[nodiscard]] JFORGE_DEVICE_AND_HOST inline float penalised(float logit, float penalty) {
  return logit > 0 ? logit / penalty : logit * penalty;
}

}  // namespace jforge
