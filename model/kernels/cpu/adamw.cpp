#include <algorithm>
#include <numeric>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/parallel_internal.h"
#include "runtime/content_hash.h"

namespace jforge {

namespace {
/// Elements of one unit of work: fixed, so that sums do not depend on the number of threads.
constexpr std::int64_t kBlock = 1 << 14;
/// The same for hashes, in bytes: long enough for XXH3 to run at its speed.
constexpr std::size_t kHashBlock = 1 << 18;
}  // namespace

void CpuKernelSet::sum_of_squares(ConstTensorView x, TensorView sum) {
  expect_sums(sum, 1, "sum_of_squares sum");
  const std::int64_t count = x.elements();
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  const float* data = x.data<float>();
  partial_sums_.assign(static_cast<std::size_t>(blocks), 0.0);
  parallel_for(blocks > 4, blocks, [&](std::int64_t block) {
    const std::int64_t begin = block * kBlock;
    partial_sums_[static_cast<std::size_t>(block)] =
        vector_.sum_of_squares(data + begin, std::min(kBlock, count - begin));
  });
  *sum.data<double>() += std::accumulate(partial_sums_.begin(), partial_sums_.end(), 0.0);
}

std::uint64_t CpuKernelSet::content_hash(ConstTensorView x, std::uint64_t seed) {
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(x.raw()), x.bytes());
  const auto blocks = static_cast<std::int64_t>((bytes.size() + kHashBlock - 1) / kHashBlock);
  partial_hashes_.resize(static_cast<std::size_t>(blocks));
  parallel_for(blocks > 1, blocks, [&](std::int64_t block) {
    const std::size_t begin = static_cast<std::size_t>(block) * kHashBlock;
    partial_hashes_[static_cast<std::size_t>(block)] =
        hash64(bytes.subspan(begin, std::min(kHashBlock, bytes.size() - begin)), seed);
  });
  return hash64(std::as_bytes(std::span(partial_hashes_)), seed);
}

void CpuKernelSet::adamw(const AdamWSettings& settings, bool decay, ConstTensorView gradient,
                         TensorView parameter, TensorView first_moment, TensorView second_moment) {
  expect_shape(gradient, parameter.shape(), "adamw gradient");
  expect_shape(first_moment, parameter.shape(), "adamw first_moment");
  expect_shape(second_moment, parameter.shape(), "adamw second_moment");
  const AdamWStep step = adamw_step(settings, decay);
  const std::int64_t count = parameter.elements();
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  const float* g = gradient.data<float>();
  float* p = parameter.data<float>();
  float* m = first_moment.data<float>();
  float* v = second_moment.data<float>();
  parallel_for(blocks > 4, blocks, [&](std::int64_t block) {
    const std::int64_t at = block * kBlock;
    vector_.adamw(step, g + at, p + at, m + at, v + at, std::min(kBlock, count - at));
  });
}

}  // namespace jforge
