#pragma once

/// Sizes and a mark of functions that host code and kernels share.

#include <cstdint>

#if defined(__CUDACC__)
#define JFORGE_DEVICE_AND_HOST __host__ __device__
#else
#define JFORGE_DEVICE_AND_HOST
#endif

namespace jforge {

inline constexpr std::int64_t kSharedAlignment = 16;
/// Shared memory of a block: an A100's (sm_80). With less, attention uses smaller tiles
/// (DeviceQueue::most_shared_bytes) and other kernels may be refused (expect_shared_memory).
inline constexpr std::int64_t kMostSharedBytes = 163 << 10;

template <class T>
[[nodiscard]] JFORGE_DEVICE_AND_HOST constexpr std::int64_t shared_size(std::int64_t count) {
  return (count * static_cast<std::int64_t>(sizeof(T)) + kSharedAlignment - 1) / kSharedAlignment *
         kSharedAlignment;
}

[[nodiscard]] JFORGE_DEVICE_AND_HOST constexpr std::int64_t divide_up(std::int64_t count,
                                                                      std::int64_t unit) {
  return (count + unit - 1) / unit;
}

}  // namespace jforge
