#pragma once

#include <cstdint>

namespace jforge {

/// How the CPU sums products of bfloat16 in float32. The order decides a result's last bits, so all
/// ranks and resumed parts of a run use one (workers/job_kernels.h).
enum class BFloat16Sums : std::uint8_t {
  /// Steps 2i and 2i + 1 form a pair; pairs are added in ascending order, the odd step first, by
  /// FMA: the order of AVX-512 BF16.
  pairs,
  /// The even and the odd ones of each 32 steps are summed apart, ascending from 0 by FMA;
  /// then total + (even + odd): the order of AMX (Intel's TDPBF16PS).
  groups,
};

/// Steps of a group.
inline constexpr std::int64_t kGroupSteps = 32;

}  // namespace jforge
