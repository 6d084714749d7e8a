#pragma once

/// What the machine can do at most, measured in the same process as what is compared with it.

#include <cstdint>
#include <memory>
#include <optional>

namespace jforge {

/// A large array that all OpenMP threads sum, several streams each: what reading costs.
class ReadArray {
 public:
  explicit ReadArray(int megabytes);
  /// Of one run over it, bytes/s.
  [[nodiscard]] double read() const;

 private:
  struct Free {
    void operator()(void* memory) const noexcept;
  };
  std::int64_t share_;  ///< Cache lines of a thread.
  std::int64_t count_;  ///< Words.
  std::unique_ptr<std::uint64_t, Free> data_;
};

struct MachinePeaks {
  double sgemm_1024 = 0;      ///< FLOP/s of oneDNN's sgemm, 1024³.
  double sgemm_2048 = 0;      ///< FLOP/s of oneDNN's sgemm, 2048³.
  double read_bandwidth = 0;  ///< Bytes/s of ReadArray.

  [[nodiscard]] double sgemm() const { return sgemm_1024 > sgemm_2048 ? sgemm_1024 : sgemm_2048; }
};

/// The best of `repetitions` runs of each, at least 1. Takes `read_megabytes` of memory for a
/// while.
[[nodiscard]] MachinePeaks measure_peaks(int repetitions, int read_megabytes);

/// The better of two measurements, each figure for itself: neighbours on the machine only ever make
/// it look slower.
[[nodiscard]] MachinePeaks best_of(const MachinePeaks& a, const MachinePeaks& b);

/// `rate` / `peak`; nothing where the peak is 0 (unknown) or below the rate: a peak that is
/// exceeded was measured on a busy machine and is none.
[[nodiscard]] inline std::optional<double> share_of_peak(double rate, double peak) {
  return peak > 0 && rate <= peak ? std::optional(rate / peak) : std::nullopt;
}

}  // namespace jforge
