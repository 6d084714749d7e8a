#pragma once

/// Sums that stay on their device until a step reads them.

#include <cstdint>
#include <span>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "runtime/tensor/buffer.h"

namespace jforge {

/// T is double or std::int64_t. Reuses its memory.
template <class T>
class DeviceSums {
 public:
  DeviceSums(KernelSet& kernels, MemoryAccount& account) : kernels_(kernels), account_(account) {}

  /// Queues zeroing of `count` sums.
  void reset(std::int64_t count);
  /// Returns sums [first, first + count).
  [[nodiscard]] TensorView part(std::int64_t first, std::int64_t count) const;
  /// Queues a copy to the host.
  void fetch();
  /// Valid after waiting for the queue, until the next fetch().
  [[nodiscard]] std::span<const T> fetched() const;
  [[nodiscard]] std::span<const T> read();

 private:
  KernelSet& kernels_;
  MemoryAccount& account_;
  Buffer memory_;
  Buffer pinned_;        ///< Host copy for a device.
  std::vector<T> host_;  ///< Host copy for the CPU.
  std::int64_t count_ = 0;
  std::int64_t fetched_ = 0;
};

using ResultSums = DeviceSums<double>;
using ResultHashes = DeviceSums<std::int64_t>;

}  // namespace jforge
