#pragma once

#include <cstdint>

#include "model/kernels/cuda/device_queue.cuh"
#include "model/kernels/cuda/reads_ahead.h"

namespace jforge {

inline constexpr std::int64_t kPartialSumLanes = 256;

/// total += Σ partials, in an order that depends only on their number.
template <class T>
struct AddPartialSums {
  const T* partials;
  std::int64_t count;
  T* total;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  __device__ void operator()(BlockGroup& group, std::int64_t /*block*/) const {
    const T added = group.sum<T>([&](std::int64_t lane) {
      T sum = 0;
      read_ahead(
          lane, count, group.lanes(), [&](std::int64_t i) { return partials[i]; },
          [&](std::int64_t /*i*/, T partial) { sum += partial; });
      return sum;
    });
    group.each([&](std::int64_t lane) {
      if (lane == 0) {
        *total += added;
      }
    });
  }
};

template <class T>
void add_partial_sums(DeviceQueue& queue, const T* partials, std::int64_t count, T* total,
                      const char* what) {
  queue.launch(1, kPartialSumLanes, AddPartialSums<T>{partials, count, total}, what);
}

}  // namespace jforge
