#pragma once

/// What a kernel's body sees of the device: a block of lanes that work in phases. A body is a
/// struct with `shared_bytes()` and `operator()(Group& group, std::int64_t block)`, written once;
/// the device runs it with BlockGroup (device_queue_cuda.cuh), tests run the same body on the host
/// with SerialGroup (device_queue_emulated.h), one lane after the other.
///
/// Group offers
///   each(f)        a phase: f(lane) on every lane, once all have ended the phase before;
///   sum<T>(f)      Σ over lanes of f(lane), as a tree of fixed shape, on every lane;
///   largest(f)     the largest f(lane), NaN ignored, on every lane;
///   shared<T>(n)   n elements that all lanes of the block see, uninitialised;
///   PerLane<T>     one T for each lane, which lives from phase to phase;
///   lanes()        how many lanes there are: a power of two.
///
/// Two rules hold bodies together. All memory that anybody writes is read and written only inside
/// phases, and within one phase no lane reads what another lane writes. Whatever stands between
/// phases must come out equal on every lane.

#include <cstdint>

#if defined(__CUDACC__)
#define JFORGE_DEVICE __device__
#define JFORGE_DEVICE_AND_HOST __host__ __device__
/// Before a loop whose indices must be constants, so that what it indexes stays in registers.
#define JFORGE_UNROLL _Pragma("unroll")
#else
#define JFORGE_DEVICE
#define JFORGE_DEVICE_AND_HOST
#define JFORGE_UNROLL
#endif

namespace jforge {

/// Shared memory of a block is handed out in multiples of this.
inline constexpr std::int64_t kSharedAlignment = 16;
/// Bytes of it that a block may ask for: 163 KiB of an A100 (sm_80). An H100 has more. Where a
/// device has less (99 KiB of sm_86 and sm_89) attention's tiles are smaller
/// (DeviceQueue::most_shared_bytes), and a kernel that needs more is refused
/// (expect_shared_memory).
inline constexpr std::int64_t kMostSharedBytes = 163 << 10;

/// Bytes that shared<T>(count) takes.
template <class T>
[[nodiscard]] JFORGE_DEVICE_AND_HOST constexpr std::int64_t shared_size(std::int64_t count) {
  return (count * static_cast<std::int64_t>(sizeof(T)) + kSharedAlignment - 1) / kSharedAlignment *
         kSharedAlignment;
}

[[nodiscard]] JFORGE_DEVICE_AND_HOST constexpr std::int64_t divide_up(std::int64_t count,
                                                                      std::int64_t unit) {
  return (count + unit - 1) / unit;
}

/// element(i) for i in [0, count), each by one lane.
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
