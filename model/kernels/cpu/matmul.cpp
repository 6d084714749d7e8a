/// Training products. Only the packed weights of invariant_matmul.cpp make small batches quick.

#include <omp.h>

#include <algorithm>
#include <span>

#include "model/kernels/cpu/blocked_product_internal.h"
#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/parallel_internal.h"

namespace jforge {

void CpuKernelSet::multiply(const BlockedProduct& product) {
  reserve_threads(product_scratch_floats());
  const auto threads = static_cast<std::size_t>(omp_get_max_threads());
  blocked_product(vector_, product, std::span(thread_scratch_).first(threads));
}

void CpuKernelSet::linear(ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
                          TensorView y) {
  const auto [m, n, k] = check_linear(x, weight, y);
  if (!bias.empty()) {
    expect_shape(bias, Shape{n}, "linear bias");
  }
  multiply({.transpose_b = true,
            .m = m,
            .n = n,
            .k = k,
            .a = x.data<float>(),
            .b = weight.data<float>(),
            .c = y.data<float>(),
            .bias = bias.empty() ? nullptr : bias.data<float>()});
}

void CpuKernelSet::linear_backward_input(ConstTensorView y_gradient, ConstTensorView weight,
                                         TensorView x_gradient, bool accumulate) {
  const auto [m, n, k] = check_linear(x_gradient, weight, y_gradient);
  multiply({.m = m,
            .n = k,
            .k = n,
            .a = y_gradient.data<float>(),
            .b = weight.data<float>(),
            .c = x_gradient.data<float>(),
            .accumulate = accumulate});
}

void CpuKernelSet::linear_backward_weight(ConstTensorView y_gradient, ConstTensorView x,
                                          TensorView weight_gradient, TensorView bias_gradient) {
  // Not a structured binding: lambdas in parallel regions capture these.
  const LinearShape shape = check_linear(x, weight_gradient, y_gradient);
  const std::int64_t m = shape.m;
  const std::int64_t n = shape.n;
  const float* dy = y_gradient.data<float>();
  multiply({.transpose_a = true,
            .m = n,
            .n = shape.k,
            .k = m,
            .a = dy,
            .b = x.data<float>(),
            .c = weight_gradient.data<float>(),
            .accumulate = true});
  if (bias_gradient.empty()) {
    return;
  }
  expect_shape(bias_gradient, Shape{n}, "linear bias_gradient");
  float* db = bias_gradient.data<float>();
  constexpr std::int64_t kColumnBlock = 256;
  const std::int64_t blocks = (n + kColumnBlock - 1) / kColumnBlock;
  parallel_for(m * n > (1 << 18), blocks, [&](std::int64_t block) {
    const std::int64_t begin = block * kColumnBlock;
    const std::int64_t width = std::min(kColumnBlock, n - begin);
    for (std::int64_t row = 0; row < m; ++row) {
      vector_.add(dy + row * n + begin, db + begin, width);
    }
  });
}

}  // namespace jforge
