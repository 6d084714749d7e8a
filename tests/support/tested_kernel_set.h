#pragma once

#include <memory>

#include "model/kernels/kernel_set.h"

namespace jforge {

/// The kernel set under test: programs link one of jforge_tested_set_cpu,
/// jforge_tested_set_emulated (CUDA kernels run lane by lane on the host) and
/// jforge_tested_set_cuda (a device, if possible one per rank).
[[nodiscard]] std::unique_ptr<KernelSet> make_tested_kernel_set();

}  // namespace jforge
