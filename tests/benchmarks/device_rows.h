#pragma once

/// What the benchmarks say of a device: rows of one table that launch/gpu_check.sh collects, each a
/// figure, what bounds it and their ratio.

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "model/kernels/kernel_set.h"
#include "runtime/device/known_devices.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {

/// The data sheet of the device that `kernels` compute on; null on the CPU and for one that is not
/// known, where shares of it are unknown.
inline const KnownDevice* device_sheet(const KernelSet& kernels) {
  return kernels.device() == Device::cuda ? find_known_device(cuda_device_name(0)) : nullptr;
}

inline void print_device_head(const KernelSet& kernels) {
  const KnownDevice* const sheet = device_sheet(kernels);
  fmt::print(
      "- device: {}{}\n\n| measurement | figure | bound | ratio |\n| --- | --- | --- | --- |\n",
      kernels.device() == Device::cuda ? cuda_device_name(0) : "CPU",
      sheet != nullptr ? fmt::format(" (bounds: data sheet of {})", sheet->name)
                       : ", no data sheet: shares are unknown");
}

/// A row; `rate` and `bound` in units of `unit` per second, bound 0: unknown.
inline void print_rate(const std::string& what, double rate, double bound, double unit,
                       const char* unit_name) {
  fmt::print("| {} | {:.4g} {} | {} | {} |\n", what, rate / unit, unit_name,
             bound > 0 ? fmt::format("{:.4g} {}", bound / unit, unit_name) : "unknown",
             bound > 0 ? fmt::format("{:.1f} %", 100 * rate / bound) : "unknown");
  std::fflush(stdout);
}

/// A row of two times; `target`: what their ratio should be.
inline void print_times(const std::string& what, double seconds, const std::string& bound_name,
                        double bound_seconds, const std::string& target) {
  fmt::print("| {} | {:.4g} ms | {} {:.4g} ms, target {} | {:.2f} |\n", what, 1e3 * seconds,
             bound_name, 1e3 * bound_seconds, target, seconds / bound_seconds);
  std::fflush(stdout);
}

/// Seconds of one `work()` on the queue of `kernels`: warm, and in the best of three runs of
/// `repetitions` calls one after another.
template <class Work>
double seconds_of(KernelSet& kernels, int repetitions, const Work& work) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int run = 0; run < 4; ++run) {
    kernels.queue().synchronize();
    const auto begin = Clock::now();
    for (int i = 0; i < (run == 0 ? 1 : repetitions); ++i) {
      work();
    }
    kernels.queue().synchronize();
    const double seconds =
        std::chrono::duration<double>(Clock::now() - begin).count() / repetitions;
    if (run == 1 || (run > 1 && seconds < best)) {
      best = seconds;
    }
  }
  return best;
}

}  // namespace jforge
