#pragma once

/// Peak FLOP/s for MFU and time estimates. MFU on known devices (known_devices.h) uses their data
/// sheets. Otherwise the peak is measured once per kind of rank, stored, and raised by the first
/// step that exceeds it, so that a disturbed measurement neither persists nor changes from start to
/// start.

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "model/kernels/kernel_set.h"
#include "runtime/comm/mpi_session.h"

namespace jforge {

/// Collective. FLOP/s of this rank in a large product of `operands` (float32 or bfloat16) while all
/// ranks run: the best call within about a third of a second, so that short disturbances do not
/// count.
[[nodiscard]] double measure_peak_flops(KernelSet& kernels, const Communicator& comm,
                                        DType operands);

/// FLOP/s of one rank, by kind: "2 ranks on a host, AMD EPYC …, threads: 1, float32", "8 ranks on a
/// host, NVIDIA H200, bfloat16".
using RankPeaks = std::map<std::string, double>;

/// Reads {"version": 1, "flops_per_rank": {…}}; empty without a file. A damaged file causes a
/// warning and counts as missing.
[[nodiscard]] RankPeaks read_rank_peaks(const std::filesystem::path& file);

/// `name` is the driver's.
struct RankDevice {
  std::string uuid;  ///< With the host's name.
  std::string name;
};
/// Sum of the devices' data sheet FLOP/s for products of `operands`, each device once; 0 if any is
/// unknown.
[[nodiscard]] double data_sheet_flops(std::span<const RankDevice> devices, DType operands);

/// Peak of all ranks of a job together.
class PeakFlops {
 public:
  /// Unknown: share_of() returns nothing.
  PeakFlops() = default;
  /// Not stored in a file. FLOP/s; 0: unknown.
  explicit PeakFlops(double total) : total_(total) {}
  /// Collective. Rank 0 reads `file`; if it lacks the kind of any rank, all measure. With `keep`,
  /// rank 0 writes new values; a failed write causes a warning.
  PeakFlops(KernelSet& kernels, const Communicator& comm, DType operands,
            std::filesystem::path file, bool keep = true);

  /// Collective. Reference of MFU: data sheets of the ranks' devices, each once, if all are known;
  /// else as above.
  [[nodiscard]] static PeakFlops for_shares(KernelSet& kernels, const Communicator& comm,
                                            DType operands, std::filesystem::path file);

  [[nodiscard]] double total() const noexcept { return total_; }  ///< FLOP/s; 0: unknown.
  /// Returns `rate` / total(), at most 1; nothing if the peak is unknown. A higher rate becomes the
  /// peak, also in the file (rank 0).
  [[nodiscard]] std::optional<double> share_of(double rate);

 private:
  double total_ = 0;
  std::filesystem::path file_;  ///< Empty on ranks that do not write.
  RankPeaks in_use_;            ///< Rank 0: kinds of this job's ranks.
};

}  // namespace jforge
