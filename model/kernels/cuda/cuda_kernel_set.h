#pragma once

#include <memory>

#include "model/kernels/kernel_set.h"

namespace jforge {

/// Makes the CUDA kernel set on device `index`, which becomes the calling thread's device; use the
/// set and its buffers on this thread only. Throws EnvironmentError, with advice, without CUDA in
/// the build, a driver, the device or a recent enough capability.
[[nodiscard]] std::unique_ptr<KernelSet> make_cuda_kernel_set(int index);

}  // namespace jforge
