/// Training products: oneDNN's single-precision GEMM. Bits repeat for equal shapes and thread
/// counts; they are not batch-invariant (invariant_matmul.cpp is).

#include <dnnl.h>

#include <algorithm>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/parallel_internal.h"
#include "model/kernels/cpu/sgemm_internal.h"

namespace jforge {

void sgemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
           const float* a, const float* b, bool accumulate, float* c) {
  if (m == 0 || n == 0) {
    return;
  }
  if (k == 0) {
    if (!accumulate) {
      std::fill(c, c + m * n, 0.0F);
    }
    return;
  }
  const dnnl_status_t status =
      dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0F, a,
                 transpose_a ? m : k, b, transpose_b ? k : n, accumulate ? 1.0F : 0.0F, c, n);
  expect(status == dnnl_success, "oneDNN refused a matrix product");
}

namespace {
struct LinearShape {
  std::int64_t m, n, k;
};

LinearShape check_linear(const ConstTensorView& x, const ConstTensorView& weight,
                         const ConstTensorView& y) {
  expect(x.shape().rank() == 2 && weight.shape().rank() == 2,
         "linear: x and weight must be matrices");
  const LinearShape shape{x.dim(0), weight.dim(0), weight.dim(1)};
  expect_shape(x, Shape{shape.m, shape.k}, "linear x");
  expect_shape(y, Shape{shape.m, shape.n}, "linear y");
  return shape;
}
}  // namespace

void CpuKernelSet::linear(ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
                          TensorView y) {
  const auto [m, n, k] = check_linear(x, weight, y);
  float* target = y.data<float>();
  if (!bias.empty()) {
    expect_shape(bias, Shape{n}, "linear bias");
    const float* source = bias.data<float>();
    for (std::int64_t row = 0; row < m; ++row) {
      std::copy(source, source + n, target + row * n);
    }
  }
  sgemm(false, true, m, n, k, x.data<float>(), weight.data<float>(), !bias.empty(), target);
}

void CpuKernelSet::linear_backward_input(ConstTensorView y_gradient, ConstTensorView weight,
                                         TensorView x_gradient, bool accumulate) {
  const auto [m, n, k] = check_linear(x_gradient, weight, y_gradient);
  sgemm(false, false, m, k, n, y_gradient.data<float>(), weight.data<float>(), accumulate,
        x_gradient.data<float>());
}

void CpuKernelSet::linear_backward_weight(ConstTensorView y_gradient, ConstTensorView x,
                                          TensorView weight_gradient, TensorView bias_gradient) {
  const auto [m, n, k] = check_linear(x, weight_gradient, y_gradient);
  const float* dy = y_gradient.data<float>();
  sgemm(true, false, n, k, m, dy, x.data<float>(), true, weight_gradient.data<float>());
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
