#include "workers/train/peak_flops.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>

#include "runtime/comm/collectives.h"

namespace jforge {

namespace {

/// A product of size × size matrices: FLOP/s of the best call, and how long that one took.
struct BestCall {
  double flops = 0;
  double seconds = 0;
};

BestCall time_product(KernelSet& kernels, MemoryAccount& account, std::int64_t size) {
  const auto bytes = static_cast<std::size_t>(size * size) * sizeof(float);
  const Buffer x(bytes, account, kernels.device());
  const Buffer weight(bytes, account, kernels.device());
  const Buffer y(bytes, account, kernels.device());
  const Shape shape{size, size};
  float first = 0;
  constexpr int kMostCalls = 100;
  constexpr double kEnough = 0.3;
  const auto call = [&] {
    const auto start = std::chrono::steady_clock::now();
    kernels.linear(x.floats(shape), weight.floats(shape), {}, y.floats(shape));
    // A device answers before it has finished; a result on the host has.
    copy_tensor(y.floats(shape).rows(0, 1).reshaped({size}).rows(0, 1), TensorView(&first, {1}));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  // A device's first call loads its kernels and raises its clock, which takes longer than many
  // products.
  static_cast<void>(call());
  double fastest = std::numeric_limits<double>::infinity();
  double spent = 0;
  for (int i = 0; i < kMostCalls && spent < kEnough; ++i) {
    const double seconds = call();
    spent += seconds;
    fastest = std::min(fastest, seconds);
  }
  return {2.0 * static_cast<double>(size * size * size) / fastest, fastest};
}

}  // namespace

double measure_peak_flops(KernelSet& kernels, const Communicator& comm) {
  constexpr std::int64_t kSize = 512;
  constexpr std::int64_t kDeviceSize = 4096;
  // A device that is done with the small product at once needs a larger one for its speed to show.
  constexpr double kAtOnce = 2e-3;
  MemoryAccount account("peak measurement");
  comm.barrier();
  BestCall best = time_product(kernels, account, kSize);
  if (kernels.device() != Device::cpu && best.seconds < kAtOnce) {
    const BestCall large = time_product(kernels, account, kDeviceSize);
    best = large.flops > best.flops ? large : best;
  }
  std::array<double, 1> total = {best.flops};
  all_reduce_sum<double>(comm, total);
  return total[0];
}

std::optional<double> share_of_peak(double rate, double peak) {
  return peak > 0 && rate <= peak ? std::optional(rate / peak) : std::nullopt;
}

std::optional<double> PeakFlops::share_of(double rate) {
  const std::optional<double> share = share_of_peak(rate, peak_);
  if (!share && peak_ > 0) {
    spdlog::warn(
        "the machine's peak was measured as {:.3g} GFLOP/s and a step reached {:.3g}: the machine "
        "was busy then, and no share of the peak (MFU) is shown",
        peak_ / 1e9, rate / 1e9);
    peak_ = 0;
  }
  return share;
}

}  // namespace jforge
