#pragma once

#include <memory>

#include "model/kernels/kernel_set.h"

namespace jforge {

/// The kernel set a test program is about. Programs that run the same tests on several sets link
/// one of jforge_tested_set_cpu, jforge_tested_set_emulated (the CUDA kernels run by the host, lane
/// by lane) and jforge_tested_set_cuda (on a device: a rank on its own where there are
/// several).
[[nodiscard]] std::unique_ptr<KernelSet> make_tested_kernel_set();

}  // namespace jforge
