#pragma once

/// The denominator of MFU.

#include <optional>

#include "model/kernels/kernel_set.h"
#include "runtime/comm/mpi_session.h"

namespace jforge {

/// Collective over `comm`. What all ranks together reach in a large matrix product of this kernel
/// set while they run side by side, FLOP/s: the best of the calls of about a third of a second, so
/// that a neighbour's short spell of work does not lower it.
[[nodiscard]] double measure_peak_flops(KernelSet& kernels, const Communicator& comm);

/// `rate` / `peak`; nothing where the peak is 0 (unknown) or below the rate: a peak that is
/// exceeded was measured on a busy machine and is none.
[[nodiscard]] std::optional<double> share_of_peak(double rate, double peak);

/// A measured peak that counts until the first rate above it. Shares reported before were too high
/// as well, but none of them is above 100 %.
class PeakFlops {
 public:
  /// FLOP/s; 0: unknown.
  explicit PeakFlops(double measured) : peak_(measured) {}
  /// share_of_peak(); a rate above the peak makes it unknown from then on, with a warning.
  [[nodiscard]] std::optional<double> share_of(double rate);

 private:
  double peak_;
};

}  // namespace jforge
