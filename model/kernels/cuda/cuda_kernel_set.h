#pragma once

#include <memory>

#include "model/kernels/kernel_set.h"

namespace jforge {

/// Device `index` becomes the calling thread's; use the set on this thread only. Throws
/// EnvironmentError without CUDA in the build, a driver, the device or its required capability.
[[nodiscard]] std::unique_ptr<KernelSet> make_cuda_kernel_set(int index);

}  // namespace jforge
