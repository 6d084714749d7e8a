#include <cfloat>
#include <limits>

#include "tests/support/kernel_calls.h"
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

/// The architecture's order: from 0, k ascending, fused, then the bias.
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
    const auto packed =
        kernels_->pack_weight(view(w, Shape{n, k}), WeightStorage::float32, account_);
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
  const std::int64_t k = 1100;  // deeper than a cache block
  const std::int64_t n = 200;
  const Floats x = random_floats(257 * k, 11);
  const Floats w = random_floats(n * k, 12);
  const auto packed = kernels_->pack_weight(view(w, Shape{n, k}), WeightStorage::float32, account_);
  Floats alone;
  for (std::int64_t row = 0; row < 257; ++row) {
    const Floats one(x.begin() + row * k, x.begin() + (row + 1) * k);
    const Floats y = product(one, 1, *packed, {});
    alone.insert(alone.end(), y.begin(), y.end());
  }
  for (const int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    for (std::int64_t m = 1; m <= 257; ++m) {
      // A row takes every place in the block.
      const Floats some(x.end() - m * k, x.end());
      const Floats y = product(some, m, *packed, {});
      ASSERT_TRUE(same_bits(y.data(), alone.data() + (257 - m) * n, m * n))
          << m << " rows, " << threads << " threads";
    }
  }
}

TEST_P(InvariantMatmul, ArgmaxFindsTheLargestOfItsOwnLogits) {
  const std::int64_t k = 41;
  for (const WeightStorage storage : {WeightStorage::float32, WeightStorage::bfloat16,
                                      WeightStorage::bfloat16_arithmetic, WeightStorage::int8}) {
    for (const std::int64_t v : {1, 15, 16, 17, 1000, 5003}) {
      const Floats w = random_floats(v * k, static_cast<unsigned>(v));
      const auto packed = kernels_->pack_weight(view(w, Shape{v, k}), storage, account_);
      for (const std::int64_t m : {1, 2, 5, 40, 210}) {
        const Floats x = random_floats(m * k, static_cast<unsigned>(v + m));
        const Floats logits = product(x, m, *packed, {});
        for (const int threads : {1, 2, 3}) {
          const ThreadCount scope(threads);
          std::vector<TokenId> tokens(at(m), -1);
          invariant_argmax(*kernels_, view(x, Shape{m, k}), *packed, tokens);
          for (std::int64_t i = 0; i < m; ++i) {
            const auto begin = logits.begin() + i * v;
            ASSERT_EQ(tokens[at(i)], std::max_element(begin, begin + v) - begin)
                << "row " << i << " of " << m << ", " << v << " columns, " << threads << " threads";
          }
        }
      }
    }
  }
}

TEST_P(InvariantMatmul, TiesGoToTheSmallestId) {
  const std::int64_t k = 64;
  const std::int64_t v = 4000;
  Floats w = random_floats(v * k, 5);
  const Floats x = random_floats(k, 6);
  // In several threads' parts and panels.
  const auto logit = [&](std::int64_t j) { return ordered_element(x.data(), &w[at(j * k)], k, 0); };
  std::int64_t best = 0;
  for (std::int64_t j = 1; j < v; ++j) {
    best = logit(j) > logit(best) ? j : best;
  }
  const std::vector<float> row(w.begin() + best * k, w.begin() + (best + 1) * k);
  for (const std::int64_t copy : {3999, 2100, 1999, 77, 70}) {
    std::copy(row.begin(), row.end(), w.begin() + copy * k);
  }
  const auto packed = kernels_->pack_weight(view(w, Shape{v, k}), WeightStorage::float32, account_);
  for (const int threads : {1, 2, 4}) {
    const ThreadCount scope(threads);
    std::vector<TokenId> tokens(1);
    invariant_argmax(*kernels_, view(x, Shape{1, k}), *packed, tokens);
    EXPECT_EQ(tokens[0], std::min<std::int64_t>(best, 70));
  }
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
    const auto packed =
        kernels_->pack_weight(view(broken, Shape{v, k}), WeightStorage::float32, account_);
    EXPECT_THROW(invariant_argmax(*kernels_, view(x, Shape{2, k}), *packed, tokens), NumericalError)
        << place;
  }
  w[at(211 * k)] = std::numeric_limits<float>::infinity();
  const auto packed = kernels_->pack_weight(view(w, Shape{v, k}), WeightStorage::float32, account_);
  invariant_argmax(*kernels_, view(x, Shape{2, k}), *packed, tokens);
  EXPECT_EQ(tokens, (std::vector<TokenId>{211, 211}));
}

Floats rounded(Floats values) {
  for (float& value : values) {
    value = to_float(to_bfloat16(value));
  }
  return values;
}

TEST_P(InvariantMatmul, Bfloat16PanelsGiveTheBitsOfTheRoundedWeight) {
  const auto other = make_cpu_kernel_set(InstructionSet::avx2, BFloat16Sums::pairs);
  // Odd depths, partial panels and groups; 1030 is deeper than a cache block.
  const std::int64_t shapes[][2] = {{1, 1},    {17, 5},    {48, 33},   {100, 64},
                                    {250, 71}, {129, 513}, {33, 1030}, {200, 1025}};
  unsigned seed = 40;
  for (const auto& [n, k] : shapes) {
    const Floats w = random_floats(n * k, ++seed);
    const Floats exact = rounded(w);
    const Floats bias = random_floats(n, ++seed);
    const auto expected =
        kernels_->pack_weight(view(exact, Shape{n, k}), WeightStorage::float32, account_);
    const auto from_exact =
        kernels_->pack_weight(view(exact, Shape{n, k}), WeightStorage::automatic, account_);
    const auto from_rounding =
        kernels_->pack_weight(view(w, Shape{n, k}), WeightStorage::bfloat16, account_);
    const auto narrow = other->pack_weight(view(w, Shape{n, k}), WeightStorage::bfloat16, account_);
    ASSERT_EQ(expected->dtype(), DType::float32);
    ASSERT_EQ(from_exact->dtype(), DType::bfloat16);
    ASSERT_EQ(from_rounding->dtype(), DType::bfloat16);
    for (const int threads : {1, 2, 3}) {
      const ThreadCount scope(threads);
      for (std::int64_t m = 1; m <= 40; ++m) {
        const Floats x = random_floats(m * k, static_cast<unsigned>(m));
        const Floats y = product(x, m, *expected, bias);
        ASSERT_TRUE(same_bits(product(x, m, *from_exact, bias), y)) << m << "x" << n << "x" << k;
        ASSERT_TRUE(same_bits(product(x, m, *from_rounding, bias), y)) << m << "x" << n << "x" << k;
        Floats theirs(at(m * n));
        other->invariant_linear(view(x, Shape{m, k}), *narrow, view(bias, Shape{n}),
                                view(theirs, Shape{m, n}));
        ASSERT_TRUE(same_bits(theirs, y)) << m << "x" << n << "x" << k << ", avx2";
      }
    }
  }
}

TEST_P(InvariantMatmul, Bfloat16TiesGoToTheSmallestIdAndNaNIsRefused) {
  const std::int64_t k = 65;
  const std::int64_t v = 4000;
  Floats w(at(v * k), 0.5F);  // Weights that bfloat16 cannot distinguish tie.
  std::fill_n(w.begin() + 3000 * k, k, 1.0F + 1e-4F);
  std::fill_n(w.begin() + 1234 * k, k, 1.0F);
  const Floats x(at(k), 1.0F);
  std::vector<TokenId> tokens(1);
  for (const int threads : {1, 2, 4}) {
    const ThreadCount scope(threads);
    const auto exact =
        kernels_->pack_weight(view(w, Shape{v, k}), WeightStorage::automatic, account_);
    invariant_argmax(*kernels_, view(x, Shape{1, k}), *exact, tokens);
    EXPECT_EQ(tokens[0], 3000);
    const auto packed =
        kernels_->pack_weight(view(w, Shape{v, k}), WeightStorage::bfloat16, account_);
    invariant_argmax(*kernels_, view(x, Shape{1, k}), *packed, tokens);
    EXPECT_EQ(tokens[0], 1234);
  }
  for (const std::int64_t place : {0, 2000, 3999}) {
    Floats broken = w;
    broken[at(place * k + k - 1)] = std::numeric_limits<float>::quiet_NaN();
    const auto packed =
        kernels_->pack_weight(view(broken, Shape{v, k}), WeightStorage::bfloat16, account_);
    EXPECT_THROW(invariant_argmax(*kernels_, view(x, Shape{1, k}), *packed, tokens), NumericalError)
        << place;
  }
}

/// In order, then the bias.
float rounded_element(BFloat16Sums sums, const float* x, const float* w, std::int64_t k,
                      float bias) {
  const auto rounded_of = [](const float* values) {
    return [values](std::int64_t i) { return to_float(to_bfloat16(values[i])); };
  };
  return ordered_sum(sums, rounded_of(x), rounded_of(w), k, 0) + bias;
}

TEST_P(InvariantMatmul, Bfloat16ArithmeticAddsInOrderForAnyNumberOfRowsAndThreads) {
  const std::int64_t shapes[][3] = {{1, 16, 8},   {3, 17, 5},     {7, 100, 33},  {13, 250, 70},
                                    {65, 33, 97}, {30, 40, 2101}, {200, 16, 513}};
  unsigned seed = 50;
  for (const auto& [m, n, k] : shapes) {
    const Floats x = random_floats(m * k, ++seed);
    const Floats w = random_floats(n * k, ++seed);
    const Floats bias = random_floats(n, ++seed);
    for (const BFloat16Sums sums : kBFloat16Sums) {
      const auto kernels = make_cpu_kernel_set(GetParam(), sums);
      const auto packed =
          kernels->pack_weight(view(w, Shape{n, k}), WeightStorage::bfloat16_arithmetic, account_);
      ASSERT_EQ(packed->dtype(), DType::bfloat16);
      for (const int threads : {1, 2}) {
        const ThreadCount scope(threads);
        Floats y(at(m * n));
        kernels->invariant_linear(view(x, Shape{m, k}), *packed, view(bias, Shape{n}),
                                  view(y, Shape{m, n}));
        for (std::int64_t i = 0; i < m * n; ++i) {
          const std::int64_t j = i % n;
          ASSERT_EQ(y[at(i)],
                    rounded_element(sums, &x[at(i / n * k)], &w[at(j * k)], k, bias[at(j)]))
              << m << "x" << n << "x" << k << " at " << i / n << "," << j;
        }
      }
    }
  }
}

TEST_P(InvariantMatmul, AddedProductsHaveTheBitsOfProductsThenAdded) {
  const std::int64_t widths[] = {16, 33, 700};
  for (const WeightStorage storage : {WeightStorage::float32, WeightStorage::bfloat16,
                                      WeightStorage::bfloat16_arithmetic, WeightStorage::int8}) {
    for (const auto& [m, k] : {std::pair{1, 64}, {9, 3}, {64, 130}}) {
      const Floats x = random_floats(3 * m * k, 400);
      std::vector<std::unique_ptr<PackedWeight>> weights;
      std::vector<Floats> expected;
      std::vector<Floats> results;
      std::vector<Projection> projections;
      for (const std::int64_t n : widths) {
        const unsigned seed = 401 + static_cast<unsigned>(n);
        const Floats w = random_floats(n * k, seed);
        weights.push_back(kernels_->pack_weight(view(w, Shape{n, k}), storage, account_));
        const Floats input(x.begin() + std::ssize(results) * m * k,
                           x.begin() + (std::ssize(results) + 1) * m * k);
        expected.push_back(product(input, m, *weights.back(), {}));
        results.push_back(random_floats(m * n, seed + 1));
        std::ranges::transform(expected.back(), results.back(), expected.back().begin(),
                               std::plus());
      }
      for (std::size_t i = 0; i < weights.size(); ++i) {
        projections.push_back({*weights[i], {}, view(results[i], Shape{m, widths[i]})});
      }
      const Buffer sums(static_cast<std::size_t>(3 * m * 700) * sizeof(float), account_,
                        MemoryUse::activations);
      kernels_->add_invariant_linears(view(x, Shape{3 * m, k}), projections, sums);
      EXPECT_EQ(results, expected) << m << " rows";
    }
  }
}

TEST_P(InvariantMatmul, RoundedArithmeticRefusesNaN) {
  const Floats w = random_floats(3001 * 65, 71);
  Floats broken = random_floats(65, 90);
  broken[3] = std::numeric_limits<float>::quiet_NaN();
  std::vector<TokenId> token(1);
  for (const WeightStorage storage : {WeightStorage::bfloat16_arithmetic, WeightStorage::int8}) {
    const auto packed = kernels_->pack_weight(view(w, Shape{3001, 65}), storage, account_);
    EXPECT_THROW(invariant_argmax(*kernels_, view(broken, Shape{1, 65}), *packed, token),
                 NumericalError);
  }
}

/// A row as whole numbers, by kernel_set.h's rule.
struct WholeNumbers {
  WholeNumbers(const float* x, std::int64_t k, float levels) : values(at(k)) {
    float maximum = 0;
    for (std::int64_t i = 0; i < k; ++i) {
      maximum = std::isfinite(x[i]) ? std::max(maximum, std::abs(x[i])) : NAN;
      if (std::isnan(maximum)) {
        scale = NAN;
        return;
      }
    }
    scale = maximum / levels < FLT_MIN ? 0 : maximum / levels;
    for (std::int64_t i = 0; i < k && scale > 0; ++i) {
      values[at(i)] = std::lrint(x[i] / scale);
    }
  }

  std::vector<std::int64_t> values;
  float scale = 0;
};

float int8_element(const WholeNumbers& x, const WholeNumbers& w, float bias) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    sum += x.values[i] * w.values[i];
  }
  return static_cast<float>(sum) * x.scale * w.scale + bias;
}

std::vector<WholeNumbers> rows_of(const Floats& values, std::int64_t k, float levels) {
  std::vector<WholeNumbers> rows;
  for (std::size_t begin = 0; begin < values.size(); begin += at(k)) {
    rows.emplace_back(&values[begin], k, levels);
  }
  return rows;
}

TEST_P(InvariantMatmul, Int8ProductsAreExactForAnyNumberOfRowsAndThreads) {
  const std::int64_t shapes[][2] = {{1, 1},   {17, 5},    {100, 65},  {250, 64},
                                    {33, 70}, {40, 1030}, {16, 1024}, {37, 2101}};
  unsigned seed = 100;
  for (const auto& [n, k] : shapes) {
    Floats x = random_floats(130 * k, ++seed);
    Floats w = random_floats(n * k, ++seed);
    Floats bias = random_floats(n, ++seed);
    bias[0] = 0;  // Beside others a tiny sum would be lost.
    // The last rows of 130, so that small batches have them too.
    const auto row = [&x, depth = k](std::int64_t i) { return x.begin() + (129 - i) * depth; };
    x[at(129 * k + k / 2)] = std::numeric_limits<float>::quiet_NaN();
    *row(2) = -std::numeric_limits<float>::infinity();
    std::fill_n(row(3), k, 0.0F);
    std::fill_n(row(4), k, 1e-35F);  // A scale that is no normal number.
    std::fill_n(row(5), k, -3.0F);   // The largest sums.
    std::fill_n(w.begin(), k, 2.0F);
    std::fill_n(w.begin() + n / 3 * k, n > 1 ? k : 0, 0.0F);
    std::fill_n(w.begin() + n / 2 * k, n > 1 ? k : 0, -1e-37F);
    const auto q_x = rows_of(x, k, 32512);
    const auto q_w = rows_of(w, k, 127);
    Floats expected;
    for (const WholeNumbers& one : q_x) {
      for (std::int64_t j = 0; j < n; ++j) {
        expected.push_back(int8_element(one, q_w[at(j)], bias[at(j)]));
      }
    }
    ASSERT_TRUE(std::isnan(expected.back()));
    const auto packed = kernels_->pack_weight(view(w, Shape{n, k}), WeightStorage::int8, account_);
    ASSERT_EQ(packed->dtype(), DType::int8);
    for (const int threads : {1, 2, 3}) {
      const ThreadCount scope(threads);
      for (const std::int64_t m : {1, 2, 4, 7, 8, 9, 16, 17, 33, 64, 130}) {
        const Floats some(x.end() - m * k, x.end());
        const Floats y = product(some, m, *packed, bias);
        for (std::int64_t i = 0; i < m * n; ++i) {
          const float& wanted = expected[at((130 - m) * n + i)];
          if (std::isnan(wanted)) {
            ASSERT_TRUE(std::isnan(y[at(i)])) << m << "x" << n << "x" << k << " at " << i;
          } else {
            ASSERT_TRUE(same_bits(&y[at(i)], &wanted, 1))
                << m << "x" << n << "x" << k << " at " << i / n << "," << i % n;
          }
        }
      }
    }
  }
}

TEST_P(InvariantMatmul, Int8SumsOfTheLongestRowsDoNotOverflow) {
  const std::int64_t k = kMaxInt8Depth;
  const Floats w(at(k + 1), 1.0F);
  const auto pack = [&](std::int64_t columns) {
    const Floats row(w.begin(), w.begin() + columns);
    return kernels_->pack_weight(view(row, Shape{1, columns}), WeightStorage::int8, account_);
  };
  const auto packed = pack(k);
  // 32384 = 256 · 127 − 128 has the largest lower byte, 32512 the largest upper one.
  for (const float value : {32384.0F, 32512.0F, -32384.0F}) {
    Floats x(at(k), value);
    x[0] = 32512;
    const float expected = int8_element({x.data(), k, 32512}, {w.data(), k, 127}, 0);
    EXPECT_EQ(product(x, 1, *packed, {}), Floats{expected});
  }
  EXPECT_THROW(pack(k + 1), ConfigError);
}

TEST_P(InvariantMatmul, Int8RoundsTheWeightsByHalfAStep) {
  const std::int64_t n = 50;
  const std::int64_t k = 300;
  const std::int64_t m = 9;
  const Floats x = random_floats(m * k, 201);
  const Floats w = random_floats(n * k, 202);
  const auto packed = kernels_->pack_weight(view(w, Shape{n, k}), WeightStorage::int8, account_);
  const Floats y = product(x, m, *packed, {});
  const auto q_x = rows_of(x, k, 32512);
  const auto q_w = rows_of(w, k, 127);
  double largest = 0;
  for (std::int64_t i = 0; i < m * n; ++i) {
    const float* const a = &x[at(i / n * k)];
    const float* const b = &w[at(i % n * k)];
    // |x + dx||w + dw| with dx and dw up to half a step, then three roundings.
    const double dx = 0.5001 * static_cast<double>(q_x[at(i / n)].scale);
    const double dw = 0.5001 * static_cast<double>(q_w[at(i % n)].scale);
    double exact = 0;
    double bound = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      const auto [p, q] = std::pair<double, double>(a[j], b[j]);
      exact += p * q;
      bound += std::abs(p) * dw + std::abs(q) * dx + dx * dw + 3e-7 * std::abs(p * q);
    }
    const double error = std::abs(static_cast<double>(y[at(i)]) - exact);
    ASSERT_LE(error, bound);
    largest = std::max(largest, error);
  }
  EXPECT_GT(largest, 0.05) << "weights were not rounded";
}

TEST_P(InvariantMatmul, Int8TakesBfloat16WeightsAsTheyAreAndRefusesNaN) {
  const Floats w = rounded(random_floats(40 * 70, 301));
  BFloat16s narrow(w.size());
  std::transform(w.begin(), w.end(), narrow.begin(), to_bfloat16);
  const Floats x = random_floats(3 * 70, 302);
  const Shape shape{40, 70};
  const auto wide = kernels_->pack_weight(view(w, shape), WeightStorage::int8, account_);
  const auto same = kernels_->pack_weight(view(narrow, shape), WeightStorage::int8, account_);
  EXPECT_TRUE(same_bits(product(x, 3, *wide, {}), product(x, 3, *same, {})));
  for (const float value : {NAN, -std::numeric_limits<float>::infinity()}) {
    Floats broken = w;
    broken.back() = value;
    EXPECT_THROW(kernels_->pack_weight(view(broken, shape), WeightStorage::int8, account_),
                 NumericalError);
  }
}

TEST_P(InvariantMatmul, AutomaticStorageLosesNothing) {
  // All exact in bfloat16.
  Floats w(at(40 * 7), -0.0F);
  w[1] = std::numeric_limits<float>::infinity();
  w[9] = to_float(BFloat16{0x0001});
  w[10] = to_float(BFloat16{0xFF7F});
  const auto type_of = [&](const Floats& values) {
    return kernels_->pack_weight(view(values, Shape{40, 7}), WeightStorage::automatic, account_)
        ->dtype();
  };
  EXPECT_EQ(type_of(w), DType::bfloat16);
  // A single finer element requires float32.
  for (const std::int64_t place : {0, 139, 279}) {
    Floats finer = w;
    finer[at(place)] = std::nextafter(1.0F, 2.0F);
    EXPECT_EQ(type_of(finer), DType::float32) << place;
  }
  Floats large(at(3000 * 300), 1.0F);
  const auto type_of_large = [&] {
    return kernels_->pack_weight(view(large, Shape{3000, 300}), WeightStorage::automatic, account_)
        ->dtype();
  };
  EXPECT_EQ(type_of_large(), DType::bfloat16);
  large.back() = 0.1F;
  EXPECT_EQ(type_of_large(), DType::float32);
}

TEST_P(InvariantMatmul, APackedWeightIsChargedAndReleased) {
  const Floats w = random_floats(33 * 9, 1);
  const auto taken = [&](WeightStorage storage) {
    const auto packed = kernels_->pack_weight(view(w, Shape{33, 9}), storage, account_);
    EXPECT_EQ(std::pair(packed->rows(), packed->columns()), std::pair(33L, 9L));
    return account_.live_bytes();
  };
  EXPECT_EQ(taken(WeightStorage::float32), 48U * 9 * 4);
  EXPECT_EQ(taken(WeightStorage::bfloat16), 48U * 10 * 2);
  EXPECT_EQ(taken(WeightStorage::int8), 48U * (64 + sizeof(float)));
  EXPECT_EQ(account_.live_bytes(), 0U);
}

TEST_P(InvariantMatmul, WrongShapesAreRefused) {
  const Floats w = random_floats(16 * 8, 1);
  const Floats x = random_floats(2 * 9, 1);
  Floats y(at(2 * 16));
  const auto packed =
      kernels_->pack_weight(view(w, Shape{16, 8}), WeightStorage::float32, account_);
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
  EXPECT_THROW(invariant_argmax(*kernels_, view(good, Shape{2, 8}), *packed, tokens),
               InternalError);
}

}  // namespace
}  // namespace jforge::test
