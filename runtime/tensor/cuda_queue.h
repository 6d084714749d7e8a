#pragma once

/// A CUDA queue without CUDA's headers, as cuda_memory.h.

#include <memory>

#include "runtime/device/queue.h"

namespace jforge {

/// The calling thread's device (select_cuda_device).
[[nodiscard]] int selected_cuda_device();

/// Copies between the selected device and page-locked memory run beside kernels and the host.
[[nodiscard]] std::unique_ptr<Queue> make_cuda_queue();

}  // namespace jforge
