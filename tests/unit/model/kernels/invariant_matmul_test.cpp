#include <limits>

#include "tests/unit/model/kernels/kernel_test_support.h"

namespace jforge::test {
namespace {

class InvariantMatmul : public KernelTest {
 protected:
  Floats product(const Floats& x, std::int64_t m, const PackedWeight& weight, const Floats& bias) {
    Floats y(at(m * weight.rows()), -7.0F);
    const ConstTensorView offsets =
        bias.empty() ? ConstTensorView() : view(bias, Shape{weight.rows()});
    kernels_->invariant_linear(view(x, Shape{m, weight.columns()}), weight, offsets,
                               view(y, Shape{m, weight.rows()}));
    return y;
  }
};
JFORGE_KERNEL_SUITE(InvariantMatmul);

/// The order the architecture binds: from 0, k ascending, fused, then the bias.
float ordered_element(const float* x, const float* w, std::int64_t k, float bias) {
  float sum = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    sum = std::fma(x[i], w[i], sum);
  }
  return sum + bias;
}

TEST_P(InvariantMatmul, EveryElementIsTheOrderedSum) {
  const std::int64_t shapes[][3] = {{1, 16, 8},    {3, 17, 5},     {7, 100, 33}, {13, 250, 70},
                                    {20, 48, 700}, {65, 33, 1030}, {2, 1, 1},    {30, 129, 513}};
  unsigned seed = 1;
  for (const auto& [m, n, k] : shapes) {
    const Floats x = random_floats(m * k, ++seed);
    const Floats w = random_floats(n * k, ++seed);
    const Floats bias = random_floats(n, ++seed);
    const auto packed = kernels_->pack_weight(view(w, Shape{n, k}), account_);
    const Floats y = product(x, m, *packed, bias);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        ASSERT_EQ(y[at(i * n + j)], ordered_element(&x[at(i * k)], &w[at(j * k)], k, bias[at(j)]))
            << m << "x" << n << "x" << k << " at " << i << "," << j;
      }
    }
  }
}

TEST_P(InvariantMatmul, RowsKeepTheirBitsForAnyNumberOfRowsAndThreads) {
  const std::int64_t k = 560;  // Deeper than one block of the cache blocking.
  const std::int64_t n = 200;
  const Floats x = random_floats(257 * k, 11);
  const Floats w = random_floats(n * k, 12);
  const auto packed = kernels_->pack_weight(view(w, Shape{n, k}), account_);
  Floats alone;
  for (std::int64_t row = 0; row < 257; ++row) {
    const Floats one(x.begin() + row * k, x.begin() + (row + 1) * k);
    const Floats y = product(one, 1, *packed, {});
    alone.insert(alone.end(), y.begin(), y.end());
  }
  for (const int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    for (std::int64_t m = 1; m <= 257; ++m) {
      // Taken from the end, so that a row meets every place in the block.
      const Floats some(x.end() - m * k, x.end());
      const Floats y = product(some, m, *packed, {});
      ASSERT_TRUE(same_bits(y.data(), alone.data() + (257 - m) * n, m * n))
          << m << " rows, " << threads << " threads";
    }
  }
}

TEST_P(InvariantMatmul, BothInstructionSetsGiveEqualBits) {
  const auto other = make_cpu_kernel_set(InstructionSet::avx2);
  const std::int64_t m = 37;
  const std::int64_t n = 300;
  const std::int64_t k = 1100;
  const Floats x = random_floats(m * k, 21);
  const Floats w = random_floats(n * k, 22);
  const auto mine = kernels_->pack_weight(view(w, Shape{n, k}), account_);
  const auto theirs = other->pack_weight(view(w, Shape{n, k}), account_);
  Floats y(at(m * n));
  other->invariant_linear(view(x, Shape{m, k}), *theirs, {}, view(y, Shape{m, n}));
  EXPECT_TRUE(same_bits(product(x, m, *mine, {}), y));
}

TEST_P(InvariantMatmul, ArgmaxFindsTheLargestLogit) {
  const std::int64_t k = 40;
  for (const std::int64_t v : {1, 15, 16, 1000, 5003}) {
    for (const std::int64_t m : {1, 5, 100, 210}) {
      const Floats x = random_floats(m * k, static_cast<unsigned>(v + m));
      const Floats w = random_floats(v * k, static_cast<unsigned>(v * 3 + m));
      const auto packed = kernels_->pack_weight(view(w, Shape{v, k}), account_);
      const Floats logits = product(x, m, *packed, {});
      for (const int threads : {1, 2}) {
        const ThreadCount scope(threads);
        std::vector<TokenId> tokens(at(m), -1);
        kernels_->invariant_argmax(view(x, Shape{m, k}), *packed, tokens);
        for (std::int64_t i = 0; i < m; ++i) {
          const auto begin = logits.begin() + i * v;
          ASSERT_EQ(tokens[at(i)], std::max_element(begin, begin + v) - begin)
              << "row " << i << " of " << m;
        }
      }
    }
  }
}

TEST_P(InvariantMatmul, TiesGoToTheSmallestId) {
  const std::int64_t k = 64;  // Enough work for several threads.
  const std::int64_t v = 4000;
  Floats w = random_floats(v * k, 5);
  const Floats x = random_floats(k, 6);
  // Copies of the best row in several threads' parts and panels.
  const auto logit = [&](std::int64_t j) { return ordered_element(x.data(), &w[at(j * k)], k, 0); };
  std::int64_t best = 0;
  for (std::int64_t j = 1; j < v; ++j) {
    best = logit(j) > logit(best) ? j : best;
  }
  const std::vector<float> row(w.begin() + best * k, w.begin() + (best + 1) * k);
  for (const std::int64_t copy : {3999, 2100, 1999, 77, 70}) {
    std::copy(row.begin(), row.end(), w.begin() + copy * k);
  }
  const auto packed = kernels_->pack_weight(view(w, Shape{v, k}), account_);
  for (const int threads : {1, 2, 4}) {
    const ThreadCount scope(threads);
    std::vector<TokenId> tokens(1);
    kernels_->invariant_argmax(view(x, Shape{1, k}), *packed, tokens);
    EXPECT_EQ(tokens[0], std::min<std::int64_t>(best, 70));
  }
}

TEST_P(InvariantMatmul, AllEqualLogitsGiveTokenZero) {
  const Floats w(at(100 * 8), 0.0F);
  const Floats x = random_floats(3 * 8, 6);
  const auto packed = kernels_->pack_weight(view(w, Shape{100, 8}), account_);
  std::vector<TokenId> tokens(3, 9);
  kernels_->invariant_argmax(view(x, Shape{3, 8}), *packed, tokens);
  EXPECT_EQ(tokens, (std::vector<TokenId>{0, 0, 0}));
}

TEST_P(InvariantMatmul, ArgmaxRefusesNaNAndTakesInfinity) {
  const std::int64_t k = 16;
  const std::int64_t v = 9000;
  Floats w = random_floats(v * k, 5);
  const Floats x(at(2 * k), 1.0F);
  std::vector<TokenId> tokens(2);
  for (const std::int64_t place : {0, 4500, 8999}) {
    Floats broken = w;
    broken[at(place * k + 3)] = std::numeric_limits<float>::quiet_NaN();
    const auto packed = kernels_->pack_weight(view(broken, Shape{v, k}), account_);
    EXPECT_THROW(kernels_->invariant_argmax(view(x, Shape{2, k}), *packed, tokens), NumericalError)
        << place;
  }
  w[at(211 * k)] = std::numeric_limits<float>::infinity();
  const auto packed = kernels_->pack_weight(view(w, Shape{v, k}), account_);
  kernels_->invariant_argmax(view(x, Shape{2, k}), *packed, tokens);
  EXPECT_EQ(tokens, (std::vector<TokenId>{211, 211}));
}

TEST_P(InvariantMatmul, PackedWeightIsChargedAndReleased) {
  {
    const Floats w = random_floats(17 * 8, 1);
    const auto packed = kernels_->pack_weight(view(w, Shape{17, 8}), account_);
    EXPECT_EQ(packed->rows(), 17);
    EXPECT_EQ(packed->columns(), 8);
    EXPECT_GE(account_.live_bytes(), 32U * 8U * sizeof(float));
  }
  EXPECT_EQ(account_.live_bytes(), 0U);
}

TEST_P(InvariantMatmul, WrongShapesAreRefused) {
  const Floats w = random_floats(16 * 8, 1);
  const Floats x = random_floats(2 * 9, 1);
  Floats y(at(2 * 16));
  const auto packed = kernels_->pack_weight(view(w, Shape{16, 8}), account_);
  EXPECT_THROW(kernels_->invariant_linear(view(x, Shape{2, 9}), *packed, {}, view(y, Shape{2, 16})),
               InternalError);
  const Floats good = random_floats(2 * 8, 1);
  EXPECT_THROW(kernels_->invariant_linear(view(good, Shape{2, 8}), *packed, view(x, Shape{18}),
                                          view(y, Shape{2, 16})),
               InternalError);
  EXPECT_THROW(
      kernels_->invariant_linear(view(good, Shape{2, 8}), *packed, {}, view(y, Shape{1, 32})),
      InternalError);
  std::vector<TokenId> tokens(3);
  EXPECT_THROW(kernels_->invariant_argmax(view(good, Shape{2, 8}), *packed, tokens), InternalError);
}

}  // namespace
}  // namespace jforge::test
