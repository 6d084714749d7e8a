#pragma once

/// Rows of the table that launch/gpu_check.sh collects: a figure, its bound and their ratio.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>

#include "model/kernels/kernel_set.h"
#include "runtime/device/known_devices.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {

/// Values of --storage, as in model.decode_weights; without automatic, because the bytes of a token
/// depend on the storage.
inline const std::map<std::string, WeightStorage> kDecodeStorages{
    {"float32", WeightStorage::float32},
    {"bfloat16", WeightStorage::bfloat16},
    {"bfloat16_arithmetic", WeightStorage::bfloat16_arithmetic}};

inline std::string storage_name(WeightStorage storage) {
  return std::ranges::find(kDecodeStorages, storage, [](const auto& one) { return one.second; })
      ->first;
}

/// Returns decoding's operand type: tensor cores take bfloat16, lanes float32.
inline DType product_type(WeightStorage storage) {
  return storage == WeightStorage::bfloat16_arithmetic ? DType::bfloat16 : DType::float32;
}

/// Returns the data sheet of the device; null on the CPU and for an unknown device.
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

/// Prints a row in units of `unit` per second. `bound` 0: unknown. `target_percent` of the bound;
/// 0: none.
inline void print_rate(const std::string& what, double rate, double bound, double unit,
                       const char* unit_name, int target_percent = 0) {
  fmt::print("| {} | {:.4g} {} | {}{} | {} |\n", what, rate / unit, unit_name,
             bound > 0 ? fmt::format("{:.4g} {}", bound / unit, unit_name) : "unknown",
             target_percent > 0 ? fmt::format(", target {} %", target_percent) : "",
             bound > 0 ? fmt::format("{:.1f} %", 100 * rate / bound) : "unknown");
  std::fflush(stdout);
}

/// Prints a row of two times; `target`: their intended ratio.
inline void print_times(const std::string& what, double seconds, const std::string& bound_name,
                        double bound_seconds, const std::string& target) {
  fmt::print("| {} | {:.4g} ms | {} {:.4g} ms, target {} | {:.2f} |\n", what, 1e3 * seconds,
             bound_name, 1e3 * bound_seconds, target, seconds / bound_seconds);
  std::fflush(stdout);
}

/// Returns the seconds of one `work()` on the kernels' queue, the best of three warm runs.
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
