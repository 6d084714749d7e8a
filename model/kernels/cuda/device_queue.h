#pragma once

/// CUDA, or its emulation on the host with JFORGE_EMULATED_DEVICE (tests).

#if defined(JFORGE_EMULATED_DEVICE)
#include "model/kernels/cuda/device_queue_emulated.h"
#else
#include "model/kernels/cuda/device_queue_cuda.cuh"
#endif

namespace jforge {

/// Work space; at_least() leaves the contents unspecified.
class DeviceScratch {
 public:
  explicit DeviceScratch(MemoryAccount& account) : account_(account) {}

  template <class T>
  T* at_least(std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    if (bytes > memory_.bytes()) {
      memory_ = Buffer();  // Freed first, so that both blocks never coexist.
      memory_ = Buffer(bytes, account_, DeviceQueue::kDevice, MemoryUse::activations);
    }
    return reinterpret_cast<T*>(memory_.data());
  }
  void release() { memory_ = Buffer(); }
  /// Moves when the memory grows.
  [[nodiscard]] const void* data() const noexcept { return memory_.data(); }

 private:
  MemoryAccount& account_;
  Buffer memory_;
};

inline constexpr std::int64_t kElementLanes = 256;
inline constexpr std::int64_t kMostElementBlocks = 8192;

template <class Element>
void launch_elements(DeviceQueue& queue, std::int64_t count, const Element& element,
                     const char* what) {
  const std::int64_t needed = divide_up(count, kElementLanes);
  const std::int64_t blocks = needed < kMostElementBlocks ? needed : kMostElementBlocks;
  queue.launch(blocks, kElementLanes, ForElements<Element>{element, count, blocks}, what);
}

}  // namespace jforge
