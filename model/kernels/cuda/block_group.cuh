#pragma once

/// How a kernel's body sees the device: a block of lanes that work in phases. A body is a struct
/// with `shared_bytes()` and `operator()(BlockGroup& group, std::int64_t block)`.
///
/// Rules: writable memory is accessed only inside phases, and within a phase no lane reads what
/// another writes. Code between phases must give equal results on every lane.

#include <cstdint>

#include "model/kernels/cuda/device_code.h"

namespace jforge {

class BlockGroup {
 public:
  static constexpr unsigned kMostLanes = 256;

  __device__ explicit BlockGroup(unsigned char* shared) : shared_(shared) {}

  /// A power of two.
  [[nodiscard]] __device__ std::int64_t lanes() const { return blockDim.x; }

  /// A phase: f(lane) on every lane, after the previous phase ended on all.
  template <class Function>
  __device__ void each(Function function) {
    begin_phase();
    function(static_cast<std::int64_t>(threadIdx.x));
  }

  /// Σ over lanes of f(lane), as a tree of fixed shape, on every lane.
  template <class T, class Function>
  __device__ T sum(Function function) {
    return reduce<T>(function, [](T a, T b) { return a + b; });
  }

  /// The largest f(lane), NaN ignored, on every lane.
  template <class Function>
  __device__ float largest(Function function) {
    return reduce<float>(function, [](float a, float b) { return fmaxf(a, b); });
  }

  /// `count` uninitialised elements shared by the block's lanes.
  template <class T>
  __device__ T* shared(std::int64_t count) {
    unsigned char* const begin = shared_;
    shared_ += shared_size<T>(count);
    return reinterpret_cast<T*>(begin);
  }

 private:
  __device__ static double* reduction_memory() {
    __shared__ double memory[kMostLanes];
    return memory;
  }

  /// The first phase needs no barrier, and nothing follows the last.
  __device__ void begin_phase() {
    if (began_) {
      __syncthreads();
    }
    began_ = true;
  }

  template <class T, class Function, class Combine>
  __device__ T reduce(Function function, Combine combine) {
    T* const values = reinterpret_cast<T*>(reduction_memory());
    const unsigned lane = threadIdx.x;
    begin_phase();
    values[lane] = function(static_cast<std::int64_t>(lane));
    __syncthreads();
    for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
      if (lane < stride) {
        values[lane] = combine(values[lane], values[lane + stride]);
      }
      __syncthreads();
    }
    return values[0];
  }

  unsigned char* shared_;
  bool began_ = false;  ///< Usually a compile-time constant.
};

template <class Body>
__global__ void run_body(const Body body) {
  extern __shared__ __align__(16) unsigned char shared[];
  BlockGroup group(shared);
  body(group, static_cast<std::int64_t>(blockIdx.x));
}

template <class Element>
struct ForElements {
  Element element;
  std::int64_t count;
  std::int64_t blocks;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  __device__ void operator()(BlockGroup& group, std::int64_t block) const {
    group.each([&](std::int64_t lane) {
      for (std::int64_t i = block * group.lanes() + lane; i < count; i += blocks * group.lanes()) {
        element(i);
      }
    });
  }
};

}  // namespace jforge
