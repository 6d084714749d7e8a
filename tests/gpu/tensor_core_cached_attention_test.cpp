/// Compares cached attention on tensor cores with the CPU's in float32 on the same bfloat16 values.
///
/// Bound: weights of keys are rounded once, by 2⁻⁸ at most, as left side of the second product. So
/// |error| ≤ 2⁻⁸ · Σ|weight · value|, plus float32's part (tensor_core_attention_test.cpp). The sum
/// of magnitudes is the CPU's attention to |values|.

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>

#include "tests/gpu/kernel_agreement.h"
#include "tests/support/kernel_calls.h"

namespace jforge::test {
namespace {

constexpr double kBound = 0x1p-8 + 0x1p-13;

struct Problem {
  std::int64_t heads;
  std::int64_t key_heads;
  std::int64_t dim;
  FullSlots slots{2, 7, 11};
  std::vector<CacheRow> rows{};

  [[nodiscard]] std::vector<CacheRow> filled() const {
    std::vector<CacheRow> all;
    for (std::int32_t slot = 0; slot < 2; ++slot) {
      for (std::int32_t row = 0; row < 7 * kCachePageRows; ++row) {
        all.push_back({slot, row});
      }
    }
    return all;
  }
  friend std::ostream& operator<<(std::ostream& to, const Problem& problem) {
    return to << problem.heads << " over " << problem.key_heads << " heads of " << problem.dim;
  }
  [[nodiscard]] Shape query() const { return {std::ssize(rows), heads, dim}; }
  [[nodiscard]] Shape key() const { return {2 * 7 * kCachePageRows, key_heads, dim}; }
  template <class Tensors>
  [[nodiscard]] PagedCache cache(Tensors& t, DType type, const Floats& keys,
                                 const Floats& values) const {
    const Shape shape = slots.shape(key_heads, dim);
    const PagedCache cache{t.blank(shape, type), t.blank(shape, type), slots.table()};
    cache_write(t.kernels, filled(), t(keys, key()), t(values, key()), cache);
    return cache;
  }
};

/// Ends of splits, runs of drafts, branches that fork within a split.
std::vector<CacheRow> some_rows() {
  std::vector<CacheRow> rows;
  for (const std::int32_t position : {0, 31, 127, 128, 255, 256, 300, 383}) {
    rows.push_back({0, position});
    rows.push_back({1, position});
  }
  for (std::int32_t i = 0; i < 20; ++i) {
    rows.push_back({0, 120 + i});
  }
  for (std::int32_t i = 0; i < 9; ++i) {
    rows.push_back({1, 250 + i, 250, 400});
  }
  return rows;
}

class TensorCoreCachedAttention : public KernelAgreement,
                                  public ::testing::WithParamInterface<Problem> {
 protected:
  Problem problem_ = GetParam();
  Floats keys_ = rounded_floats(problem_.key().elements(), 1);
  Floats values_ = rounded_floats(problem_.key().elements(), 2);

  Floats attend(KernelSet& kernels, DType type, const Floats& values) {
    const Floats q = rounded_floats(problem_.query().elements(), 3);
    return run_on(kernels, [&](Tensors& t) -> std::vector<TensorView> {
      const PagedCache cache = problem_.cache(t, type, keys_, values);
      const TensorView output = t.blank(problem_.query());
      cached_attention(kernels, problem_.rows, t(q, problem_.query()), cache, output);
      return {output};
    })[0];
  }
  [[nodiscard]] Floats row_of(const Floats& values, std::int64_t row) const {
    const std::int64_t floats = problem_.heads * problem_.dim;
    return {values.begin() + row * floats, values.begin() + (row + 1) * floats};
  }
};

TEST_P(TensorCoreCachedAttention, IsWithinTheRoundingOfItsWeights) {
  problem_.rows = some_rows();
  const Floats found = attend(*tested_, DType::bfloat16, values_);
  const Floats expected = attend(*reference_, DType::float32, values_);
  Floats magnitudes = values_;
  std::ranges::transform(magnitudes, magnitudes.begin(),
                         [](float value) { return std::abs(value); });
  const Floats sums = attend(*reference_, DType::float32, magnitudes);
  double worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(found[i]) - expected[i]) / sums[i]);
  }
  EXPECT_LT(worst, kBound);
  EXPECT_GT(worst, 0x1p-16) << "nothing was rounded: not on tensor cores?";
}

TEST_P(TensorCoreCachedAttention, DoesNotDependOnTheBatch) {
  problem_.rows = some_rows();
  const std::int64_t few = std::ssize(problem_.rows);
  // adds tiles until blocks take whole rows
  while (std::ssize(problem_.rows) * problem_.key_heads < few * problem_.key_heads + 270) {
    const auto i = static_cast<std::int32_t>(problem_.rows.size());
    problem_.rows.push_back({i % 2, i % 5});
  }
  const Shape query = problem_.query();
  const Floats q = rounded_floats(query.elements(), 4);
  const std::vector<Floats> results = run_on(*tested_, [&](Tensors& t) -> std::vector<TensorView> {
    const PagedCache cache = problem_.cache(t, DType::bfloat16, keys_, values_);
    const TensorView queries = t(q, query);
    const TensorView many = t.blank(query);
    const TensorView some = t.blank(query);
    const TensorView alone = t.blank(query);
    const std::span<const CacheRow> rows(problem_.rows);
    cached_attention(t.kernels, rows, queries, cache, many);
    cached_attention(t.kernels, rows.first(static_cast<std::size_t>(few)), queries.rows(0, few),
                     cache, some.rows(0, few));
    for (std::int64_t row = 0; row < few; row += 3) {
      cached_attention(t.kernels, rows.subspan(static_cast<std::size_t>(row), 1),
                       queries.rows(row, row + 1), cache, alone.rows(row, row + 1));
    }
    return {many.rows(0, few), some.rows(0, few), alone.rows(0, few)};
  });
  EXPECT_TRUE(same_bits(results[0], results[1]));
  for (std::int64_t row = 0; row < few; row += 3) {
    EXPECT_TRUE(same_bits(row_of(results[0], row), row_of(results[2], row))) << "row " << row;
  }
}

TEST_P(TensorCoreCachedAttention, WhatIsNotSeenDoesNotMatter) {
  for (std::int32_t i = 0; i < 12; ++i) {
    problem_.rows.push_back({0, 150 + i});
  }
  const Floats clean = attend(*tested_, DType::bfloat16, values_);
  const std::int64_t width = problem_.key_heads * problem_.dim;
  for (const float broken :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Floats values = values_;
    // The last four rows see row 158, none sees row 170.
    for (const std::int64_t row : {158, 170}) {
      std::fill_n(values.begin() + row * width, width, broken);
    }
    const Floats found = attend(*tested_, DType::bfloat16, values);
    for (std::int64_t row = 0; row < 8; ++row) {
      EXPECT_TRUE(same_bits(row_of(found, row), row_of(clean, row))) << "row " << row;
    }
    for (std::int64_t row = 8; row < 12; ++row) {
      for (const float value : row_of(found, row)) {
        ASSERT_FALSE(std::isfinite(value)) << "row " << row;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, TensorCoreCachedAttention,
                         ::testing::Values(Problem{7, 1, 64}, Problem{4, 4, 64}, Problem{8, 2, 128},
                                           Problem{32, 1, 128}),
                         [](const auto& one) {
                           return std::to_string(one.param.heads) + "Over" +
                                  std::to_string(one.param.key_heads) + "Of" +
                                  std::to_string(one.param.dim);
                         });

}  // namespace
}  // namespace jforge::test
