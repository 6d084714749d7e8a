/// Training products; for small batches the packed weights of invariant_matmul.cpp are faster.

#include <omp.h>

#include <algorithm>
#include <span>
#include <type_traits>

#include "model/kernels/cpu/blocked_product_internal.h"
#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/parallel_internal.h"

namespace jforge {

template <class Element>
void CpuKernelSet::multiply(BlockedProduct<Element> product) {
  if constexpr (std::is_same_v<Element, BFloat16>) {
    if (keeps_sums(product)) {
      product.c = product_sums_.at_least(product.m * product.n);
    }
  }
  reserve_threads(product_scratch_floats());
  const auto threads = static_cast<std::size_t>(omp_get_max_threads());
  blocked_product(vector_, product, std::span(thread_scratch_).first(threads));
}

template void CpuKernelSet::multiply(BlockedProduct<float> product);
template void CpuKernelSet::multiply(BlockedProduct<BFloat16> product);

namespace {

template <class Function>
void with_element(DType type, Function function) {
  if (type == DType::float32) {
    function(float{});
  } else {
    function(BFloat16{});
  }
}

template <class Element>
void set_result(const TensorView& view, BlockedProduct<Element>& product) {
  if (view.dtype() == DType::float32) {
    product.c = view.data<float>();
  } else {
    product.rounded = view.data<BFloat16>();
  }
}

}  // namespace

void CpuKernelSet::linear(ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
                          TensorView y, bool accumulate) {
  const auto [m, n, k] = check_linear(x, weight, y);
  expect(!accumulate || bias.empty(), "linear: a sum is added to without a bias");
  const float* added = nullptr;
  if (!bias.empty()) {
    expect_shape(bias, Shape{n}, "linear bias");
    expect_floating(bias, "linear bias");
    added = floats_of(vector_, bias, 0, n, widened_.at_least(n));
  }
  const LinearShape shape{m, n, k};  // Lambdas cannot capture a structured binding.
  with_element(product_type(x, weight, y, "linear"), [&](auto element) {
    using Element = decltype(element);
    BlockedProduct<Element> product{.transpose_b = true,
                                    .m = shape.m,
                                    .n = shape.n,
                                    .k = shape.k,
                                    .a = x.data<Element>(),
                                    .a_row = shape.k,
                                    .b = weight.data<Element>(),
                                    .accumulate = accumulate,
                                    .bias = added};
    set_result(y, product);
    multiply(product);
  });
}

void CpuKernelSet::linear_backward_input(ConstTensorView y_gradient, ConstTensorView weight,
                                         TensorView x_gradient, bool accumulate) {
  const LinearShape shape = check_linear(x_gradient, weight, y_gradient);
  with_element(product_type(y_gradient, weight, x_gradient, "linear_backward_input"),
               [&](auto element) {
                 using Element = decltype(element);
                 BlockedProduct<Element> product{.m = shape.m,
                                                 .n = shape.k,
                                                 .k = shape.n,
                                                 .a = y_gradient.data<Element>(),
                                                 .a_row = shape.n,
                                                 .b = weight.data<Element>(),
                                                 .accumulate = accumulate};
                 set_result(x_gradient, product);
                 multiply(product);
               });
}

void CpuKernelSet::linear_backward_weight(ConstTensorView y_gradient, ConstTensorView x,
                                          TensorView weight_gradient, TensorView bias_gradient,
                                          bool accumulate) {
  // Not a structured binding: lambdas in parallel regions capture these.
  const LinearShape shape = check_linear(x, weight_gradient, y_gradient);
  const std::int64_t m = shape.m;
  const std::int64_t n = shape.n;
  expect_float32(weight_gradient, "linear weight_gradient");
  with_element(product_type(y_gradient, x, weight_gradient, "linear_backward_weight"),
               [&](auto element) {
                 using Element = decltype(element);
                 multiply<Element>({.transpose_a = true,
                                    .m = n,
                                    .n = shape.k,
                                    .k = m,
                                    .a = y_gradient.data<Element>(),
                                    .a_row = n,
                                    .b = x.data<Element>(),
                                    .c = weight_gradient.data<float>(),
                                    .accumulate = accumulate});
               });
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
    float widened[kColumnBlock];
    for (std::int64_t row = 0; row < m; ++row) {
      vector_.add(floats_of(vector_, y_gradient, row * n + begin, width, widened), db + begin,
                  width);
    }
  });
}

}  // namespace jforge
