#pragma once

/// The peak that shares of it (MFU) and estimates of time refer to. Shares on known devices
/// (known_devices.h) refer to their data sheets. Otherwise it is measured once per kind of rank,
/// kept on disk, and raised by the first step that exceeds it, so that a busy moment during the
/// measurement neither stays nor differs from start to start.

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "model/kernels/kernel_set.h"
#include "runtime/comm/mpi_session.h"

namespace jforge {

/// Collective over `comm`. What this rank reaches in a large product of `operands` (float32 or
/// bfloat16) while all ranks run side by side, FLOP/s: the best of the calls of about a third of a
/// second, so that a neighbour's short spell of work does not lower it.
[[nodiscard]] double measure_peak_flops(KernelSet& kernels, const Communicator& comm,
                                        DType operands);

/// Peaks of one rank, FLOP/s, by what the rank runs on ("2 ranks on a host, AMD
/// EPYC …, threads: 1, float32", "8 ranks on a host, NVIDIA H200, bfloat16").
using RankPeaks = std::map<std::string, double>;

/// What a file of peaks holds (JSON: {"version": 1, "flops_per_rank": {…}}); empty where there is
/// none. A damaged file is as good as none: it is warned of and replaced by the next measurement.
[[nodiscard]] RankPeaks read_rank_peaks(const std::filesystem::path& file);

/// One rank's device: what tells it from all others, and what the driver calls it.
struct RankDevice {
  std::string uuid;  ///< With the host's name.
  std::string name;
};
/// Sum of the data sheets' FLOP/s of products of `operands` over these devices, each counted once;
/// 0 if one of them is unknown.
[[nodiscard]] double data_sheet_flops(std::span<const RankDevice> devices, DType operands);

/// The peak of all ranks of a job together.
class PeakFlops {
 public:
  /// Unknown: no share is ever given.
  PeakFlops() = default;
  /// Not kept anywhere. FLOP/s; 0: unknown.
  explicit PeakFlops(double total) : total_(total) {}
  /// Collective. From `file`, which rank 0 reads; where a rank of another kind computes, all
  /// measure. With `keep` rank 0 writes what is new; a file that cannot be written is warned of.
  PeakFlops(KernelSet& kernels, const Communicator& comm, DType operands,
            std::filesystem::path file, bool keep = true);

  /// Collective. What MFU refers to: the data sheets of the ranks' devices, each device once, if
  /// all are known, else as above.
  [[nodiscard]] static PeakFlops for_shares(KernelSet& kernels, const Communicator& comm,
                                            DType operands, std::filesystem::path file);

  [[nodiscard]] double total() const noexcept { return total_; }  ///< FLOP/s; 0: unknown.
  /// `rate` / total(), at most 1; nothing where the peak is unknown. A rate above the peak becomes
  /// the peak, also in the file (rank 0).
  [[nodiscard]] std::optional<double> share_of(double rate);

 private:
  double total_ = 0;
  std::filesystem::path file_;  ///< Empty on ranks that do not write.
  RankPeaks in_use_;            ///< Rank 0: of the kinds that this job's ranks are.
};

}  // namespace jforge
