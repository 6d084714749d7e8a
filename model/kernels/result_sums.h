#pragma once

/// Sums that kernels leave on their device until a step reads them all at once.

#include <cstdint>
#include <span>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "runtime/tensor/buffer.h"

namespace jforge {

/// Numbers of 8 bytes on a set's device, T double or std::int64_t. Memory grows to the largest
/// reset() and is reused.
template <class T>
class DeviceSums {
 public:
  DeviceSums(KernelSet& kernels, MemoryAccount& account) : kernels_(kernels), account_(account) {}

  /// `count` zeros, in the order of the set's queue.
  void reset(std::int64_t count);
  /// Numbers [first, first + count), for kernels to add to.
  [[nodiscard]] TensorView part(std::int64_t first, std::int64_t count) const;
  /// Asks for all of them as they are at this place of the queue; the host does not wait.
  void fetch();
  /// What fetch() asked for: once the queue has been waited for since, and until the next fetch().
  [[nodiscard]] std::span<const T> fetched() const;
  /// fetch(), and waits for it.
  [[nodiscard]] std::span<const T> read();

 private:
  KernelSet& kernels_;
  MemoryAccount& account_;
  Buffer memory_;
  Buffer pinned_;        ///< What the host reads, of a device: copied without a wait …
  std::vector<T> host_;  ///< … and of the host.
  std::int64_t count_ = 0;
  std::int64_t fetched_ = 0;
};

using ResultSums = DeviceSums<double>;
using ResultHashes = DeviceSums<std::int64_t>;

}  // namespace jforge
