#pragma once

/// Peak FLOP/s for MFU and time estimates. MFU on known devices uses data sheets (known_devices.h).
/// Otherwise the peak is measured once per kind of rank, stored, and raised by the first step that
/// exceeds it, so that a disturbed measurement does not persist.

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "model/kernels/kernel_set.h"
#include "runtime/comm/mpi_session.h"

namespace jforge {

/// FLOP/s by kind of rank: "2 ranks on a host, AMD EPYC …, threads: 1, float32".
using RankPeaks = std::map<std::string, double>;

/// Reads {"version": 1, "flops_per_rank": {…}}. Empty for a missing or, with a warning, damaged
/// file.
[[nodiscard]] RankPeaks read_rank_peaks(const std::filesystem::path& file);

struct RankDevice {
  std::string uuid;  ///< With the host's name.
  std::string name;
};
/// Data sheet FLOP/s for products of `operands`, each device once; 0 if any is unknown.
[[nodiscard]] double data_sheet_flops(std::span<const RankDevice> devices, DType operands);

/// Joint peak of a job's ranks.
class PeakFlops {
 public:
  /// Unknown.
  PeakFlops() = default;
  /// FLOP/s, not stored; 0: unknown.
  explicit PeakFlops(double total) : total_(total) {}
  /// Collective. Rank 0 reads `file`; if any rank's kind is missing, all measure. With `keep`, rank
  /// 0 writes new values or warns.
  PeakFlops(KernelSet& kernels, const Communicator& comm, DType operands,
            std::filesystem::path file, bool keep = true);

  /// Collective. For MFU: data sheets if all devices are known, else as above.
  [[nodiscard]] static PeakFlops for_shares(KernelSet& kernels, const Communicator& comm,
                                            DType operands, std::filesystem::path file);

  [[nodiscard]] double total() const noexcept { return total_; }  ///< FLOP/s; 0: unknown.
  /// `rate` / total(), at most 1; nothing if unknown. A higher rate becomes the peak, also in the
  /// file (rank 0).
  [[nodiscard]] std::optional<double> share_of(double rate);

 private:
  double total_ = 0;
  std::filesystem::path file_;  ///< Rank 0 with `keep` only.
  RankPeaks in_use_;            ///< Rank 0: of this job's kinds.
};

}  // namespace jforge
