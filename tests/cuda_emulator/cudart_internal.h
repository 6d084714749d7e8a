#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <mutex>

#include "tests/cuda_emulator/device.h"

namespace jforge::emulator {

using Lock = std::lock_guard<std::recursive_mutex>;

/// Keeps a failure for cudaGetLastError.
cudaError_t answer(cudaError_t status);
/// The device's failure, if any, replaces the call's result.
cudaError_t answer_of(Device& device, cudaError_t status = cudaSuccess);

template <class Callable>
cudaError_t with_device(Callable work) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  device.attempt([&] { work(device); });
  return answer_of(device);
}

/// Like with_device(), but invalidates a capture by the calling thread.
template <class Callable>
cudaError_t outside_capture(Callable work) {
  if (Capture* const capture = Device::capturing(); capture != nullptr) {
    capture->valid = false;
    return answer(cudaErrorStreamCaptureUnsupported);
  }
  return with_device(work);
}

inline std::uint64_t number_of(const void* address) {
  return reinterpret_cast<std::uint64_t>(address);
}

}  // namespace jforge::emulator
