/// Training's matrix products, by cuBLASLt.

#include "model/kernels/cuda/column_sums.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"

namespace jforge {

namespace {

/// A product with k = 0.
struct EmptySums {
  FloatSource bias;  ///< Without data: zero.
  FloatTarget c;
  std::int64_t columns;
  __device__ void operator()(std::int64_t i) const {
    c.set(i, bias.data == nullptr ? 0.0F : bias[i % columns]);
  }
};

struct WidenBias {
  FloatSource bias;
  float* widened;
  __device__ void operator()(std::int64_t i) const { widened[i] = bias[i]; }
};

struct BiasTerm {
  FloatSource y_gradient;
  std::int64_t columns;
  __device__ float operator()(std::int64_t row, std::int64_t column) const {
    return y_gradient[row * columns + column];
  }
};

}  // namespace

void CudaKernelSet::product(const MatrixProduct& product) {
  if (product.m == 0 || product.n == 0) {
    return;
  }
  if (product.k > 0) {
    queue_.multiply(product);
  } else if (!product.accumulate) {
    const bool narrow = product.result == DType::bfloat16;
    launch_elements(queue_, product.m * product.n,
                    EmptySums{{product.bias, narrow}, {product.c, narrow}, product.n},
                    "empty product");
  }
}

void CudaKernelSet::linear(ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
                           TensorView y, bool accumulate) {
  const auto [m, n, k] = check_linear(x, weight, y);
  expect(!accumulate || bias.empty(), "linear: a sum is added to without a bias");
  const DType operands = product_type(x, weight, y, "linear");
  const void* added = nullptr;
  if (!bias.empty()) {
    expect_shape(bias, Shape{n}, "linear bias");
    added = floating(bias).data;
    if (bias.dtype() != y.dtype()) {
      // A bias more precise than the result cannot be fused: the sum would be rounded twice.
      expect(y.dtype() == DType::float32, "linear: a float32 bias needs a float32 result");
      auto* const widened = bias_.at_least<float>(n);
      launch_elements(queue_, n, WidenBias{floating(bias), widened}, "linear bias");
      added = widened;
    } else if (reinterpret_cast<std::uintptr_t>(added) % kProductBiasAlignment != 0) {
      auto* const copy = bias_.at_least<std::byte>(static_cast<std::int64_t>(bias.bytes()));
      queue_.copy(bias, TensorView(copy, bias.dtype(), bias.shape(), Device::cuda));
      added = copy;
    }
  }
  product({.transpose_b = true,
           .m = m,
           .n = n,
           .k = k,
           .operands = operands,
           .a = floating(x).data,
           .b = floating(weight).data,
           .result = y.dtype(),
           .c = floating(y).data,
           .bias = added,
           .accumulate = accumulate});
}

void CudaKernelSet::linear_backward_input(ConstTensorView y_gradient, ConstTensorView weight,
                                          TensorView x_gradient, bool accumulate) {
  const auto [m, n, k] = check_linear(x_gradient, weight, y_gradient);
  product({.m = m,
           .n = k,
           .k = n,
           .operands = product_type(y_gradient, weight, x_gradient, "linear_backward_input"),
           .a = floating(y_gradient).data,
           .b = floating(weight).data,
           .result = x_gradient.dtype(),
           .c = floating(x_gradient).data,
           .accumulate = accumulate});
}

void CudaKernelSet::linear_backward_weight(ConstTensorView y_gradient, ConstTensorView x,
                                           TensorView weight_gradient, TensorView bias_gradient,
                                           bool accumulate) {
  const auto [m, n, k] = check_linear(x, weight_gradient, y_gradient);
  product({.transpose_a = true,
           .m = n,
           .n = k,
           .k = m,
           .operands = product_type(y_gradient, x, weight_gradient, "linear_backward_weight"),
           .a = floating(y_gradient).data,
           .b = floating(x).data,
           .c = floats(weight_gradient),
           .accumulate = accumulate});
  if (bias_gradient.empty()) {
    return;
  }
  expect_shape(bias_gradient, Shape{n}, "linear bias_gradient");
  add_column_sums(queue_, partials_, m, n, BiasTerm{floating(y_gradient), n}, floats(bias_gradient),
                  "linear bias_gradient");
}

}  // namespace jforge
