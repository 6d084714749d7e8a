#pragma once

#include <memory>

#include "model/kernels/kernel_set.h"

namespace jforge {

/// The CUDA implementation, on CUDA device `index`, which becomes the calling thread's
/// device: buffers and kernels belong to the thread that made them. Throws EnvironmentError, saying
/// how to mend it, without CUDA in the build, without a driver and without that device, or where
/// the device is older than the kernels.
[[nodiscard]] std::unique_ptr<KernelSet> make_cuda_kernel_set(int index);

}  // namespace jforge
