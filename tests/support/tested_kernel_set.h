#pragma once

#include <memory>

#include "model/kernels/kernel_set.h"

namespace jforge {

/// Returns the kernel set that the program is linked with: jforge_tested_set_cpu or
/// jforge_tested_set_cuda (a device, if possible one per rank).
[[nodiscard]] std::unique_ptr<KernelSet> make_tested_kernel_set();

}  // namespace jforge
