#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/parallel_internal.h"

namespace jforge {

namespace {
/// Elements of one unit of work: fixed, so that sums do not depend on the number of threads.
constexpr std::int64_t kBlock = 1 << 14;
}  // namespace

double CpuKernelSet::sum_of_squares(ConstTensorView x) {
  const std::int64_t count = x.elements();
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  const float* data = x.data<float>();
  partial_sums_.assign(static_cast<std::size_t>(blocks), 0.0);
  parallel_for(blocks > 4, blocks, [&](std::int64_t block) {
    const std::int64_t begin = block * kBlock;
    partial_sums_[static_cast<std::size_t>(block)] =
        vector_.sum_of_squares(data + begin, std::min(kBlock, count - begin));
  });
  return std::accumulate(partial_sums_.begin(), partial_sums_.end(), 0.0);
}

void CpuKernelSet::adamw(const AdamWSettings& settings, bool decay, ConstTensorView gradient,
                         TensorView parameter, TensorView first_moment, TensorView second_moment) {
  expect_shape(gradient, parameter.shape(), "adamw gradient");
  expect_shape(first_moment, parameter.shape(), "adamw first_moment");
  expect_shape(second_moment, parameter.shape(), "adamw second_moment");
  expect(settings.step >= 1, "adamw: steps count from 1");
  const auto t = static_cast<double>(settings.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(settings.beta1), t);
  const double correction2 = 1.0 - std::pow(static_cast<double>(settings.beta2), t);
  const double rate = static_cast<double>(settings.learning_rate);
  const AdamWStep step{
      .gradient_scale = settings.gradient_scale,
      .beta1 = settings.beta1,
      .beta2 = settings.beta2,
      .decay_factor =
          decay ? static_cast<float>(1.0 - rate * static_cast<double>(settings.weight_decay))
                : 1.0F,
      .step_size = static_cast<float>(rate / correction1),
      .inverse_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(correction2)),
      .epsilon = settings.epsilon};
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
