#include <array>

#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "model/kernels/cuda/partial_sums.h"

namespace jforge {

namespace {

constexpr std::int64_t kSumLanes = 256;
/// Constant, so that the order of addition depends only on the size.
constexpr std::int64_t kSumBlock = 1 << 14;

struct SquaresOfBlock {
  const float* x;
  std::int64_t count;
  double* sums;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  __device__ void operator()(BlockGroup& group, std::int64_t block) const {
    const std::int64_t last = (block + 1) * kSumBlock;
    const std::int64_t end = last < count ? last : count;
    const double total = group.sum<double>([&](std::int64_t lane) {
      double sum = 0;
      for (std::int64_t i = block * kSumBlock + lane; i < end; i += group.lanes()) {
        const double value = static_cast<double>(x[i]);
        sum += value * value;
      }
      return sum;
    });
    group.each([&](std::int64_t lane) {
      if (lane == 0) {
        sums[block] = total;
      }
    });
  }
};

/// The CPU's arithmetic, operation for operation.
struct AdamWElement {
  AdamWStep step;
  const float* gradient;
  float* parameter;
  float* first_moment;
  float* second_moment;
  BFloat16* rounded;  ///< May be null.
  __device__ void operator()(std::int64_t i) const {
    // All loads precede the first store, so that they overlap.
    const float slope = gradient[i];
    const float old_parameter = parameter[i];
    const float old_first = first_moment[i];
    const float old_second = second_moment[i];
    const float g = slope * step.gradient_scale;
    const float m = fmaf(1.0F - step.beta1, g, step.beta1 * old_first);
    const float v = fmaf((1.0F - step.beta2) * g, g, step.beta2 * old_second);
    const float denominator = fmaf(sqrtf(v), step.inverse_sqrt_correction2, step.epsilon);
    first_moment[i] = m;
    second_moment[i] = v;
    const float updated = old_parameter * step.decay_factor - step.step_size * m / denominator;
    parameter[i] = updated;
    if (rounded != nullptr) {
      rounded[i] = round_to_bfloat16(updated);
    }
  }
};

}  // namespace

void CudaKernelSet::sum_of_squares(ConstTensorView x, TensorView sum) {
  expect_sums(sum, 1, "sum_of_squares sum");
  const std::int64_t count = x.elements();
  const std::int64_t blocks = divide_up(count, kSumBlock);
  if (blocks == 0) {
    return;
  }
  auto* const sums = partials_.at_least<double>(blocks);
  queue_.launch(blocks, kSumLanes, SquaresOfBlock{floats(x), count, sums}, "sum_of_squares");
  add_partial_sums(queue_, sums, blocks, sums_of(sum), "sum_of_squares total");
}

void CudaKernelSet::adamw(const AdamWSettings& settings, bool decay, ConstTensorView gradient,
                          const AdamWState& state, const AdamWHashes& hashes) {
  expect_adamw_shapes(gradient, state);
  expect_adamw_hashes(hashes);
  // Like hash_adamw_state(), in one launch.
  const auto hash_state = [&](const TensorView& sums) {
    if (!sums.empty()) {
      content_hash(std::array{HashedTensor{state.parameter, sums.rows(0, 1)},
                              HashedTensor{state.first_moment, sums.rows(1, 2)},
                              HashedTensor{state.second_moment, sums.rows(2, 3)},
                              HashedTensor{state.rounded, sums.rows(3, 4)}},
                   hashes.seed);
    }
  };
  hash_state(hashes.found);
  launch_elements(queue_, state.parameter.elements(),
                  AdamWElement{adamw_step(settings, decay), floats(gradient),
                               floats(state.parameter), floats(state.first_moment),
                               floats(state.second_moment), bfloat16s(state.rounded)},
                  "adamw");
  hash_state(hashes.left);
}

}  // namespace jforge
