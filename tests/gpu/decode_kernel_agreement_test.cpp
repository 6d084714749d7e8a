/// The KernelSet's functions of decoding against the CPU's: the same tokens and products bit for
/// bit, and rows that do not depend on the batch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "runtime/error.h"
#include "tests/gpu/kernel_agreement.h"

namespace jforge {
namespace {

using namespace jforge::testing;

TEST_F(KernelAgreement, InvariantLinearHasTheCpusBits) {
  for (const std::int64_t m : {1, 7, 8, 9, 40}) {
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {63, 64}, {65, 200}}) {
      expect_same_bits([&](Tensors& t) -> std::vector<TensorView> {
        const auto packed = t.kernels.pack_weight(t(random_floats(n * k, 80), {n, k}), t.account());
        const TensorView x = t(random_floats(m * k, 81), {m, k});
        const TensorView plain = t.blank({m, n});
        const TensorView with_bias = t.blank({m, n});
        t.kernels.invariant_linear(x, *packed, {}, plain);
        t.kernels.invariant_linear(x, *packed, t(random_floats(n, 82), {n}), with_bias);
        return {plain, with_bias};
      });
    }
  }
}

TEST_F(KernelAgreement, WeightsArePackedFromHostMemoryToo) {
  const Floats weight = random_floats(30 * 20, 83);
  const std::vector<Floats> results = run_on(*tested_, [&](Tensors& t) -> std::vector<TensorView> {
    const auto from_host = t.kernels.pack_weight({weight.data(), {30, 20}}, t.account());
    const auto from_device = t.kernels.pack_weight(t(weight, {30, 20}), t.account());
    const TensorView x = t(random_floats(3 * 20, 84), {3, 20});
    const TensorView first = t.blank({3, 30});
    const TensorView second = t.blank({3, 30});
    t.kernels.invariant_linear(x, *from_host, {}, first);
    t.kernels.invariant_linear(x, *from_device, {}, second);
    return {first, second};
  });
  EXPECT_TRUE(same_bits(results[0], results[1]));
}

TEST_F(KernelAgreement, ArgmaxTakesTheCpusTokens) {
  const std::int64_t v = 1000;
  const std::int64_t k = 40;
  for (const std::int64_t m : {1, 8, 21}) {
    std::vector<std::vector<TokenId>> chosen;
    static_cast<void>(run([&](Tensors& t) -> std::vector<TensorView> {
      const auto head = t.kernels.pack_weight(t(random_floats(v * k, 85), {v, k}), t.account());
      auto& tokens = chosen.emplace_back(static_cast<std::size_t>(m), -1);
      t.kernels.invariant_argmax(t(random_floats(m * k, 86), {m, k}), *head, tokens);
      return {};
    }));
    EXPECT_EQ(chosen[0], chosen[1]);
  }
}

TEST_F(KernelAgreement, ArgmaxTiesGoToTheSmallestId) {
  Floats head(300, 0.0F);  // [300, 1]: logits are the weights times the hidden value.
  head[70] = 2.0F;
  head[71] = 2.0F;
  head[290] = 2.0F;
  static_cast<void>(run([&](Tensors& t) -> std::vector<TensorView> {
    const auto packed = t.kernels.pack_weight(t(head, {300, 1}), t.account());
    std::vector<TokenId> tokens(3, -1);
    t.kernels.invariant_argmax(t({1.0F, -1.0F, 0.0F}, {3, 1}), *packed, tokens);
    EXPECT_THAT(tokens, ::testing::ElementsAre(70, 0, 0));
    return {};
  }));
}

TEST_F(KernelAgreement, ArgmaxRefusesNaN) {
  Floats head = random_floats(300, 87);
  head[299] = std::numeric_limits<float>::quiet_NaN();
  static_cast<void>(run([&](Tensors& t) -> std::vector<TensorView> {
    const auto packed = t.kernels.pack_weight(t(head, {300, 1}), t.account());
    std::vector<TokenId> tokens(1, -1);
    EXPECT_THROW(t.kernels.invariant_argmax(t({1.0F}, {1, 1}), *packed, tokens), NumericalError);
    return {};
  }));
}

/// Rows of three slots in a cache of 90 positions.
struct CacheProblem {
  static constexpr std::int64_t kSlots = 3;
  static constexpr std::int64_t kCapacity = 90;
  std::int64_t heads = 6;
  std::int64_t key_heads = 2;
  std::int64_t dim = 16;
  std::vector<CacheRow> rows;

  [[nodiscard]] Shape cache() const { return {kSlots, kCapacity, key_heads, dim}; }
  [[nodiscard]] Shape queries() const {
    return {static_cast<std::int64_t>(rows.size()), heads, dim};
  }
};

TEST_F(KernelAgreement, CachedAttention) {
  CacheProblem problem;
  for (std::int32_t i = 0; i < 20; ++i) {
    problem.rows.push_back({1, 60 + i});
  }
  problem.rows.push_back({0, 0});
  problem.rows.push_back({2, 89});
  problem.rows.push_back({0, 31});
  problem.rows.push_back({0, 32});
  expect_close([&](Tensors& t) -> std::vector<TensorView> {
    const LayerCache cache{t(random_floats(problem.cache().elements(), 90), problem.cache()),
                           t(random_floats(problem.cache().elements(), 91), problem.cache())};
    const auto count = static_cast<std::int64_t>(problem.rows.size());
    const Shape keys{count, problem.key_heads, problem.dim};
    t.kernels.cache_write(problem.rows, t(random_floats(keys.elements(), 92), keys),
                          t(random_floats(keys.elements(), 93), keys), cache);
    const TensorView output = t.blank(problem.queries());
    t.kernels.cached_attention(
        problem.rows, t(random_floats(problem.queries().elements(), 94), problem.queries()), cache,
        output);
    return {output, cache.keys, cache.values};
  });
}

/// A decoding row's bits depend on its query and its keys alone: alone or among others, and in a
/// packed batch.
TEST_F(KernelAgreement, CachedAttentionDoesNotDependOnTheBatch) {
  CacheProblem problem;
  for (std::int32_t i = 0; i < 70; ++i) {
    problem.rows.push_back({2, i});
  }
  const Shape query = problem.queries();
  const Shape key{query[0], problem.key_heads, problem.dim};
  const Floats q = random_floats(query.elements(), 95);
  const Floats k = random_floats(key.elements(), 96);
  const Floats v = random_floats(key.elements(), 97);
  const std::vector<Floats> results = run_on(*tested_, [&](Tensors& t) -> std::vector<TensorView> {
    const LayerCache cache{t.blank(problem.cache()), t.blank(problem.cache())};
    t.kernels.cache_write(problem.rows, t(k, key), t(v, key), cache);
    const TensorView queries = t(q, query);
    const TensorView together = t.blank(query);
    t.kernels.cached_attention(problem.rows, queries, cache, together);
    const TensorView alone = t.blank(query);
    for (std::int64_t row = 0; row < query[0]; ++row) {
      t.kernels.cached_attention(std::span(problem.rows).subspan(static_cast<std::size_t>(row), 1),
                                 queries.rows(row, row + 1), cache, alone.rows(row, row + 1));
    }
    const TensorView packed = t.blank(query);
    PackedLayout layout;
    layout.num_rows = query[0];
    layout.segments = {{0, query[0], 0, 0, 0}};
    t.kernels.packed_attention(queries, t(k, key), t(v, key), layout, packed,
                               t.blank({query[0], problem.heads}));
    return {together, alone, packed};
  });
  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(same_bits(results[0], results[2]));
}

TEST_F(KernelAgreement, InvariantLinearDoesNotDependOnTheBatch) {
  const std::int64_t m = 19;
  const std::int64_t n = 77;
  const std::int64_t k = 90;
  const std::vector<Floats> results = run_on(*tested_, [&](Tensors& t) -> std::vector<TensorView> {
    const auto weight = t.kernels.pack_weight(t(random_floats(n * k, 98), {n, k}), t.account());
    const TensorView x = t(random_floats(m * k, 99), {m, k});
    const TensorView together = t.blank({m, n});
    const TensorView alone = t.blank({m, n});
    t.kernels.invariant_linear(x, *weight, {}, together);
    for (std::int64_t row = 0; row < m; ++row) {
      t.kernels.invariant_linear(x.rows(row, row + 1), *weight, {}, alone.rows(row, row + 1));
    }
    return {together, alone};
  });
  EXPECT_TRUE(same_bits(results[0], results[1]));
}

}  // namespace
}  // namespace jforge
