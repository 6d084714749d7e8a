#pragma once

/// KernelSet::content_hash on the device.

#include <cstdint>
#include <vector>

#include "model/kernels/cuda/device_queue.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Hashes of some tensors that come back together. Kernels hash whole blocks; their hashes, and of
/// each tensor the bytes behind its last whole block, are read back by finish(): about 1/4096 of
/// what was hashed, and up to 32 KiB a tensor. Memory grows to the largest call and is reused.
class ContentHashes {
 public:
  ContentHashes(DeviceQueue& queue, MemoryAccount& account)
      : queue_(queue), secrets_(queue, account), memory_(account) {}

  /// Forgets the tensors of the last call.
  void clear();
  /// Adds a tensor; *hash is its seed, and from finish() on its hash.
  void add(const ConstTensorView& x, std::uint64_t* hash);
  [[nodiscard]] std::size_t size() const noexcept { return tensors_.size(); }
  /// Hashes the tensors [begin, end) as they are at this place of the queue. All are added before
  /// the first run.
  void run(std::size_t begin, std::size_t end);
  /// Waits for the device.
  void finish();

 private:
  struct Tensor {
    const std::byte* data;
    std::int64_t blocks;  ///< Whole ones.
    std::int64_t rest;    ///< Bytes behind them.
    std::int64_t place;   ///< In memory_: the blocks' hashes, then the rest.
    std::uint64_t* hash;
  };

  DeviceQueue& queue_;
  StagedArray secrets_;
  DeviceScratch memory_;
  std::int64_t used_ = 0;
  std::vector<Tensor> tensors_;
  std::vector<std::uint64_t> table_;
  std::vector<std::byte> read_;
};

}  // namespace jforge
