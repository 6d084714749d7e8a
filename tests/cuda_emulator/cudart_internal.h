#pragma once

/// How the calls of libcudart's stand-in answer.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <mutex>

#include "tests/cuda_emulator/device.h"

namespace jforge::emulator {

using Lock = std::lock_guard<std::recursive_mutex>;

/// Keeps a failure for cudaGetLastError.
cudaError_t answer(cudaError_t status);
/// The device's failure, where there is one, comes before the call's own result.
cudaError_t answer_of(Device& device, cudaError_t status = cudaSuccess);

/// Does `work` with the device, then answers.
template <class Callable>
cudaError_t with_device(Callable work) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  device.attempt([&] { work(device); });
  return answer_of(device);
}

/// As with_device(), for what may not be called by a thread that captures: it makes the capture
/// invalid.
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
