#pragma once

/// Limits of the machine, measured in the process of the compared figures.

#include <cstdint>
#include <memory>
#include <optional>

namespace jforge {

/// A large array that all OpenMP threads sum, several streams each.
class ReadArray {
 public:
  explicit ReadArray(int megabytes);
  /// Returns the bytes/s of one run.
  [[nodiscard]] double read() const;

 private:
  struct Free {
    void operator()(void* memory) const noexcept;
  };
  std::int64_t share_;  ///< cache lines of a thread
  std::int64_t count_;  ///< words
  std::unique_ptr<std::uint64_t, Free> data_;
};

struct MachinePeaks {
  double sgemm_1024 = 0;      ///< FLOP/s of oneDNN's sgemm, 1024³
  double sgemm_2048 = 0;      ///< FLOP/s of oneDNN's sgemm, 2048³
  double bfloat16 = 0;        ///< FLOP/s of oneDNN's product of bfloat16, 2048³; 0: it has none
  double read_bandwidth = 0;  ///< bytes/s of ReadArray

  [[nodiscard]] double sgemm() const { return sgemm_1024 > sgemm_2048 ? sgemm_1024 : sgemm_2048; }
};

/// Returns the best of `repetitions` ≥ 1 runs. Allocates `read_megabytes`.
[[nodiscard]] MachinePeaks measure_peaks(int repetitions, int read_megabytes);

/// Returns the better of each figure, because other load only slows.
[[nodiscard]] MachinePeaks best_of(const MachinePeaks& a, const MachinePeaks& b);

/// Returns `rate` / `peak`; nothing if the peak is unknown (0) or exceeded, which shows a busy
/// machine.
[[nodiscard]] inline std::optional<double> share_of_peak(double rate, double peak) {
  return peak > 0 && rate <= peak ? std::optional(rate / peak) : std::nullopt;
}

}  // namespace jforge
