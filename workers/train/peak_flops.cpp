#include "workers/train/peak_flops.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "runtime/comm/collectives.h"

namespace jforge {

double measure_peak_flops(KernelSet& kernels, const Communicator& comm) {
  constexpr std::int64_t kSize = 512;
  constexpr int kRepeats = 8;
  MemoryAccount account("peak measurement");
  constexpr auto kBytes = static_cast<std::size_t>(kSize * kSize) * sizeof(float);
  const Buffer x(kBytes, account);
  const Buffer weight(kBytes, account);
  const Buffer y(kBytes, account);
  const Shape shape{kSize, kSize};
  comm.barrier();
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    kernels.linear(x.floats(shape), weight.floats(shape), {}, y.floats(shape));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * static_cast<double>(kSize * kSize * kSize) / seconds.count());
  }
  std::array<double, 1> total = {best};
  all_reduce_sum<double>(comm, total);
  return total[0];
}

}  // namespace jforge
