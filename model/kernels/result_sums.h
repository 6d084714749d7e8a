#pragma once

/// Sums that stay on their device until a step reads them all at once.

#include <cstdint>
#include <span>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "runtime/tensor/buffer.h"

namespace jforge {

/// 8-byte sums on a set's device; T is double or std::int64_t. Memory grows to the largest reset()
/// and is reused.
template <class T>
class DeviceSums {
 public:
  DeviceSums(KernelSet& kernels, MemoryAccount& account) : kernels_(kernels), account_(account) {}

  /// Makes `count` zeros, in queue order.
  void reset(std::int64_t count);
  /// Returns sums [first, first + count) for kernels to add to.
  [[nodiscard]] TensorView part(std::int64_t first, std::int64_t count) const;
  /// Queues a copy of the sums to the host; does not wait.
  void fetch();
  /// Returns the fetched sums; valid after waiting for the queue, until the next fetch().
  [[nodiscard]] std::span<const T> fetched() const;
  /// Fetches, waits and returns the sums.
  [[nodiscard]] std::span<const T> read();

 private:
  KernelSet& kernels_;
  MemoryAccount& account_;
  Buffer memory_;
  Buffer pinned_;        ///< Host copy for a device: page-locked.
  std::vector<T> host_;  ///< Host copy for the CPU.
  std::int64_t count_ = 0;
  std::int64_t fetched_ = 0;
};

using ResultSums = DeviceSums<double>;
using ResultHashes = DeviceSums<std::int64_t>;

}  // namespace jforge
