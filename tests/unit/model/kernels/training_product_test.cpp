// Equal to a plain ordered sum bit for bit.

#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/model/kernels/kernel_test_support.h"

namespace jforge {
namespace {

using namespace jforge::test;

struct ProductShape {
  std::int64_t m, n, k;
};

/// Partial tiles, several blocks of K (1024 steps), tall and wide shapes, several threads.
const std::vector<ProductShape> kShapes = {
    {1, 1, 1},    {1, 17, 5},      {7, 16, 33},   {25, 31, 2},    {6, 64, 64},    {97, 40, 1030},
    {5, 1100, 1}, {3, 1090, 1027}, {200, 70, 90}, {131, 129, 65}, {30, 2100, 40}, {300, 20, 200}};

/// Σ_k a[row·a_row + k·a_k] · b[column·b_column + k·b_k] from `start`, in order.
float dot(const Floats& a, std::int64_t at_a, std::int64_t a_k, const Floats& b, std::int64_t at_b,
          std::int64_t b_k, std::int64_t k, float start) {
  for (std::int64_t i = 0; i < k; ++i) {
    start = std::fma(a[static_cast<std::size_t>(at_a + i * a_k)],
                     b[static_cast<std::size_t>(at_b + i * b_k)], start);
  }
  return start;
}

using TrainingProductTest = KernelTest;

TEST_P(TrainingProductTest, LinearIsTheSumInOrderThenTheBias) {
  for (const auto [m, n, k] : kShapes) {
    const Floats x = random_floats(m * k, 1);
    const Floats w = random_floats(n * k, 2);
    const Floats bias = random_floats(n, 3);
    for (const int threads : {1, 2, 3, 5}) {
      const ThreadCount scope(threads);
      for (const bool with_bias : {false, true}) {
        Floats y(static_cast<std::size_t>(m * n + 1), std::numeric_limits<float>::quiet_NaN());
        y.back() = 42;
        kernels_->linear(view(x, {m, k}), view(w, {n, k}),
                         with_bias ? view(bias, {n}) : ConstTensorView(),
                         TensorView(y.data(), {m, n}));
        for (std::int64_t i = 0; i < m * n; ++i) {
          const float sum = dot(x, i / n * k, 1, w, i % n * k, 1, k, 0.0F) +
                            (with_bias ? bias[static_cast<std::size_t>(i % n)] : 0.0F);
          ASSERT_EQ(y[static_cast<std::size_t>(i)], sum)
              << m << "x" << n << "x" << k << " element " << i << ", " << threads << " threads";
        }
        EXPECT_EQ(y.back(), 42) << "written behind the end";
      }
    }
  }
}

TEST_P(TrainingProductTest, GradientsAreSumsInOrder) {
  for (const auto [m, n, k] : kShapes) {
    const Floats dy = random_floats(m * n, 4);
    const Floats x = random_floats(m * k, 5);
    const Floats w = random_floats(n * k, 6);
    const Floats dx_before = random_floats(m * k, 7);
    const Floats dw_before = random_floats(n * k, 8);
    for (const int threads : {1, 2, 3, 5}) {
      const ThreadCount scope(threads);
      for (const bool accumulate : {false, true}) {
        Floats dx = dx_before;
        kernels_->linear_backward_input(view(dy, {m, n}), view(w, {n, k}), view(dx, {m, k}),
                                        accumulate);
        for (std::int64_t i = 0; i < m * k; ++i) {
          const auto at = static_cast<std::size_t>(i);
          ASSERT_EQ(dx[at], dot(dy, i / k * n, 1, w, i % k, k, n, accumulate ? dx_before[at] : 0))
              << m << "x" << n << "x" << k << " input element " << i << ", " << threads
              << " threads";
        }
      }
      for (const bool accumulate : {false, true}) {
        Floats dw = dw_before;
        Floats db(static_cast<std::size_t>(n), 3.0F);
        kernels_->linear_backward_weight(view(dy, {m, n}), view(x, {m, k}), view(dw, {n, k}),
                                         accumulate ? view(db, {n}) : TensorView(), accumulate);
        for (std::int64_t i = 0; i < n * k; ++i) {
          const auto at = static_cast<std::size_t>(i);
          ASSERT_EQ(dw[at], dot(dy, i / k, n, x, i % k, k, m, accumulate ? dw_before[at] : 0))
              << m << "x" << n << "x" << k << " weight element " << i << ", " << threads
              << " threads";
        }
        Doubles db_ref(db.size(), 3.0);
        for (std::int64_t i = 0; accumulate && i < m * n; ++i) {
          db_ref[static_cast<std::size_t>(i % n)] +=
              static_cast<double>(dy[static_cast<std::size_t>(i)]);
        }
        EXPECT_LT(relative_error(db, db_ref), kTolerance);
      }
    }
  }
}

TEST_P(TrainingProductTest, EmptyProductsAndSumsOverNothing) {
  const Floats bias = {1, 2, 3};
  const Floats nothing;
  Floats y(6, 7.0F);
  kernels_->linear(view(nothing, {2, 0}), view(nothing, {3, 0}), view(bias, {3}), view(y, {2, 3}));
  EXPECT_EQ(y, (Floats{1, 2, 3, 1, 2, 3}));
  kernels_->linear_backward_input(view(nothing, {2, 0}), view(nothing, {0, 3}), view(y, {2, 3}),
                                  true);
  EXPECT_EQ(y, (Floats{1, 2, 3, 1, 2, 3}));
  kernels_->linear_backward_input(view(nothing, {2, 0}), view(nothing, {0, 3}), view(y, {2, 3}),
                                  false);
  EXPECT_EQ(y, Floats(6, 0.0F));
}

TEST_P(TrainingProductTest, NaNStaysInItsRow) {
  constexpr std::int64_t kSize = 40;
  Floats x = random_floats(kSize * kSize, 1);
  const Floats w = random_floats(kSize * kSize, 2);
  x[3 * kSize + 5] = std::numeric_limits<float>::quiet_NaN();
  Floats y(kSize * kSize);
  kernels_->linear(view(x, {kSize, kSize}), view(w, {kSize, kSize}), {}, view(y, {kSize, kSize}));
  for (std::int64_t i = 0; i < kSize * kSize; ++i) {
    EXPECT_EQ(std::isnan(y[static_cast<std::size_t>(i)]), i / kSize == 3) << i;
  }
}

JFORGE_KERNEL_SUITE(TrainingProductTest);

}  // namespace
}  // namespace jforge
