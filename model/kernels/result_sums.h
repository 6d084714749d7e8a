#pragma once

/// Sums that kernels leave on their device until a step reads them all at once.

#include <cstdint>
#include <span>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "runtime/tensor/buffer.h"

namespace jforge {

/// float64 numbers on a set's device. Memory grows to the largest reset() and is reused.
class ResultSums {
 public:
  ResultSums(KernelSet& kernels, MemoryAccount& account) : kernels_(kernels), account_(account) {}

  /// `count` zeros, in the order of the set's queue.
  void reset(std::int64_t count);
  /// Numbers [first, first + count), for kernels to add to.
  [[nodiscard]] TensorView part(std::int64_t first, std::int64_t count) const;
  /// All of them, once everything queued before has run. Valid until the next reset() or read().
  [[nodiscard]] std::span<const double> read();

 private:
  KernelSet& kernels_;
  MemoryAccount& account_;
  Buffer memory_;
  std::vector<double> read_;  ///< Where the host cannot read memory_.
  std::int64_t count_ = 0;
};

}  // namespace jforge
