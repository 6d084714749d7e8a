#pragma once

/// How a kernel's body sees the device: a block of lanes that work in phases. A body is a struct
/// with `shared_bytes()` and `operator()(Group& group, std::int64_t block)`. The device runs it
/// with BlockGroup (device_queue_cuda.cuh); tests run it on the host with SerialGroup
/// (device_queue_emulated.h), lane by lane.
///
/// Group offers
///     each(f)        a phase: f(lane) on every lane, after the previous phase ended on all;
///     sum<T>(f)      Σ over lanes of f(lane), as a tree of fixed shape, on every lane;
///     largest(f)     the largest f(lane), NaN ignored, on every lane;
///     shared<T>(n)   n uninitialised elements shared by the block's lanes;
///     PerLane<T>     one T per lane, kept from phase to phase;
///     lanes()        the number of lanes, a power of two.
///
/// Rules: writable memory is accessed only inside phases, and within a phase no lane reads what
/// another writes. Code between phases must give equal results on every lane.

#include <cstdint>

#if defined(__CUDACC__)
#define JFORGE_DEVICE __device__
#define JFORGE_DEVICE_AND_HOST __host__ __device__
/// Keeps indexed arrays in registers.
#define JFORGE_UNROLL _Pragma("unroll")
#else
#define JFORGE_DEVICE
#define JFORGE_DEVICE_AND_HOST
#define JFORGE_UNROLL
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

template <class Element>
struct ForElements {
  Element element;
  std::int64_t count;
  std::int64_t blocks;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t block) const {
    group.each([&](std::int64_t lane) {
      for (std::int64_t i = block * group.lanes() + lane; i < count; i += blocks * group.lanes()) {
        element(i);
      }
    });
  }
};

}  // namespace jforge
