#pragma once

/// The denominator of MFU.

#include "model/kernels/kernel_set.h"
#include "runtime/comm/mpi_session.h"

namespace jforge {

/// Collective over `comm`. What all ranks together reach in a large matrix product of this kernel
/// set while they run side by side, FLOP/s: measured for about a tenth of a second, best of
/// several.
[[nodiscard]] double measure_peak_flops(KernelSet& kernels, const Communicator& comm);

}  // namespace jforge
