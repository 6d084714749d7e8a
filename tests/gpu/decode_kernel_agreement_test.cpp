#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "runtime/error.h"
#include "tests/gpu/kernel_agreement.h"
#include "tests/support/kernel_calls.h"

namespace jforge {
namespace {

using namespace jforge::test;

TEST_F(KernelAgreement, InvariantLinearHasTheCpusBits) {
  for (const std::int64_t m : {1, 7, 8, 9, 40}) {
    for (const auto& [n, k] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {63, 64}, {64, 65}, {66, 128}, {65, 200}}) {
      expect_same_bits([&](Tensors& t) -> std::vector<TensorView> {
        const TensorView weight = t(random_floats(n * k, 80), {n, k});
        const auto packed = t.kernels.pack_weight(weight, WeightStorage::float32, t.account());
        const auto rounded = t.kernels.pack_weight(weight, WeightStorage::bfloat16, t.account());
        const TensorView x = t(random_floats(m * k, 81), {m, k});
        const TensorView plain = t.blank({m, n});
        const TensorView with_bias = t.blank({m, n});
        const TensorView of_rounded = t.blank({m, n});
        t.kernels.invariant_linear(x, *rounded, {}, of_rounded);
        t.kernels.invariant_linear(x, *packed, {}, plain);
        t.kernels.invariant_linear(x, *packed, t(random_floats(n, 82), {n}), with_bias);
        return {plain, with_bias, of_rounded};
      });
    }
  }
}

TEST_F(KernelAgreement, AWeightOfBfloat16NumbersIsStoredSo) {
  Floats weight = random_floats(70 * 50, 83);
  for (float& value : weight) {
    value = to_float(to_bfloat16(value));
  }
  expect_same_bits([&](Tensors& t) -> std::vector<TensorView> {
    const auto exact =
        t.kernels.pack_weight(t(weight, {70, 50}), WeightStorage::automatic, t.account());
    EXPECT_EQ(exact->dtype(), DType::bfloat16);
    Floats other = weight;
    other[1234] = 1.0F + 1.0F / 512;
    const auto inexact =
        t.kernels.pack_weight(t(other, {70, 50}), WeightStorage::automatic, t.account());
    EXPECT_EQ(inexact->dtype(), DType::float32);
    const TensorView x = t(random_floats(9 * 50, 84), {9, 50});
    const TensorView first = t.blank({9, 70});
    const TensorView second = t.blank({9, 70});
    t.kernels.invariant_linear(x, *exact, {}, first);
    t.kernels.invariant_linear(x, *inexact, {}, second);
    return {first, second};
  });
}

TEST_F(KernelAgreement, Bfloat16Arithmetic) {
  for (const std::int64_t m : {1, 8, 9, 17, 33, 70}) {
    for (const auto& [n, k] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {16, 32}, {33, 40}, {70, 300}}) {
      expect_close([&](Tensors& t) -> std::vector<TensorView> {
        const auto packed = t.kernels.pack_weight(t(random_floats(n * k, 80), {n, k}),
                                                  WeightStorage::bfloat16_arithmetic, t.account());
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

TEST_F(KernelAgreement, Bfloat16ArithmeticOfRoundedRows) {
  constexpr std::int64_t kRows = 19;
  constexpr std::int64_t kColumns = 33;
  constexpr std::int64_t kDepth = 72;
  Floats numbers = random_floats(kRows * kDepth, 81);
  for (float& number : numbers) {
    number = to_float(to_bfloat16(number));
  }
  const std::vector<Floats> found = run_on(*tested_, [&](Tensors& t) {
    const auto weight =
        t.kernels.pack_weight(t(random_floats(kColumns * kDepth, 80), {kColumns, kDepth}),
                              WeightStorage::bfloat16_arithmetic, t.account());
    std::vector<TensorView> results;
    for (const DType input : kElementTypes) {
      for (const DType output : kElementTypes) {
        results.push_back(t.blank({kRows, kColumns}, output));
        t.kernels.invariant_linear(t(numbers, {kRows, kDepth}, input), *weight, {}, results.back());
      }
    }
    return results;
  });
  for (std::size_t i = 1; i < found.size(); ++i) {
    for (std::size_t at = 0; at < found[i].size(); ++at) {
      const float whole = found[0][at];
      EXPECT_EQ(found[i][at], i % 2 == 0 ? whole : to_float(to_bfloat16(whole))) << i << ", " << at;
    }
  }
}

/// Weights of odd sizes cannot be grouped.
TEST_F(KernelAgreement, AGroupOfWeights) {
  constexpr std::int64_t kDepth = 72;
  for (const std::array<std::int64_t, 3>& sizes :
       {std::array<std::int64_t, 3>{16, 16, 40}, {5, 5, 10}}) {
    const auto product_of = [&](Tensors& t, std::int64_t rows) {
      std::vector<std::unique_ptr<PackedWeight>> weights;
      for (const std::int64_t size : sizes) {
        ProductUse use;
        use.group_rows = weights.empty() ? sizes[0] + sizes[1] + sizes[2] : 0;
        use.after = weights.empty() ? nullptr : weights.back().get();
        weights.push_back(t.kernels.pack_weight(
            t(random_floats(size * kDepth, 80 + static_cast<unsigned>(weights.size())),
              {size, kDepth}),
            WeightStorage::bfloat16_arithmetic, t.account(), use));
      }
      std::vector<TensorView> results;
      std::vector<Projection> projections;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        results.push_back(t.blank({rows, sizes[i]}));
        const ConstTensorView bias =
            i == 1 ? ConstTensorView()
                   : ConstTensorView(t(random_floats(sizes[i], 90), {sizes[i]}));
        projections.push_back({*weights[i], bias, results.back()});
      }
      t.kernels.invariant_linears(t(random_floats(rows * kDepth, 84), {rows, kDepth}), projections);
      return results;
    };
    expect_close([&](Tensors& t) { return product_of(t, 21); });
    const std::vector<Floats> many =
        run_on(*tested_, [&](Tensors& t) { return product_of(t, 21); });
    const std::vector<Floats> few = run_on(*tested_, [&](Tensors& t) { return product_of(t, 2); });
    for (std::size_t i = 0; i < many.size(); ++i) {
      EXPECT_TRUE(same_bits(few[i], Floats(many[i].begin(), many[i].begin() + std::ssize(few[i]))));
    }
  }
}

TEST_F(KernelAgreement, ProjectionsTogether) {
  using enum WeightStorage;
  struct Output {
    std::int64_t n;
    WeightStorage storage;
  };
  for (const std::int64_t m : {1, 8, 9, 33}) {
    for (const std::int64_t k : {6, 33, 300}) {
      for (const std::vector<Output>& outputs :
           {std::vector<Output>{{33, bfloat16_arithmetic}, {16, bfloat16_arithmetic}},
            {{70, bfloat16_arithmetic},
             {1, bfloat16_arithmetic},
             {17, bfloat16_arithmetic},
             {40, bfloat16_arithmetic},
             {70, bfloat16},
             {64, float32},
             {65, float32}}}) {
        const std::vector<Floats> found = run_on(*tested_, [&](Tensors& t) {
          const TensorView x = t(random_floats(m * k, 81), {m, k});
          std::vector<std::unique_ptr<PackedWeight>> weights;
          std::vector<Projection> projections;
          std::vector<TensorView> results;
          for (const auto& [n, storage] : outputs) {
            weights.push_back(t.kernels.pack_weight(
                t(random_floats(n * k, static_cast<unsigned>(80 + n)), {n, k}), storage,
                t.account()));
            const ConstTensorView bias =
                n % 2 == 0 ? ConstTensorView() : t(random_floats(n, 82), {n});
            const TensorView alone = t.blank({m, n});
            const TensorView together = t.blank({m, n});
            t.kernels.invariant_linear(x, *weights.back(), bias, alone);
            projections.push_back({*weights.back(), bias, together});
            results.insert(results.end(), {alone, together});
          }
          t.kernels.invariant_linears(x, projections);
          return results;
        });
        for (std::size_t i = 0; i < found.size(); i += 2) {
          EXPECT_TRUE(same_bits(found[i], found[i + 1])) << m << " rows, output " << i / 2;
        }
      }
    }
  }
}

/// Wide and partial blocks; runs of no, one and several steps.
TEST_F(KernelAgreement, ManyRowsHaveTheBitsOfFew) {
  struct Case {
    std::int64_t m;
    std::int64_t n;
    std::int64_t k;
  };
  for (const auto& [m, n, k] :
       {Case{520, 1000, 40}, Case{520, 1000, 290}, Case{60, 16'900, 40}, Case{60, 16'900, 70}}) {
    const std::vector<Floats> found = run_on(*tested_, [&](Tensors& t) {
      const auto weight = t.kernels.pack_weight(t(random_floats(n * k, 80), {n, k}),
                                                WeightStorage::bfloat16_arithmetic, t.account());
      const TensorView x = t(random_floats(m * k, 81), {m, k});
      const TensorView bias = t(random_floats(n, 82), {n});
      const TensorView many = t.blank({m, n});
      const TensorView few = t.blank({m, n});
      t.kernels.invariant_linear(x, *weight, bias, many);
      for (std::int64_t row = 0; row < m; row += 20) {
        t.kernels.invariant_linear(x.rows(row, row + 20), *weight, bias, few.rows(row, row + 20));
      }
      return std::vector<TensorView>{many, few};
    });
    EXPECT_TRUE(same_bits(found[0], found[1])) << m << " rows, depth " << k;
  }
}

TEST_F(KernelAgreement, WeightsArePackedFromHostMemoryToo) {
  const Floats weight = random_floats(30 * 20, 83);
  const std::vector<Floats> results = run_on(*tested_, [&](Tensors& t) -> std::vector<TensorView> {
    const auto from_host =
        t.kernels.pack_weight({weight.data(), {30, 20}}, WeightStorage::float32, t.account());
    const auto from_device =
        t.kernels.pack_weight(t(weight, {30, 20}), WeightStorage::float32, t.account());
    const TensorView x = t(random_floats(3 * 20, 84), {3, 20});
    const TensorView first = t.blank({3, 30});
    const TensorView second = t.blank({3, 30});
    t.kernels.invariant_linear(x, *from_host, {}, first);
    t.kernels.invariant_linear(x, *from_device, {}, second);
    return {first, second};
  });
  EXPECT_TRUE(same_bits(results[0], results[1]));
}

/// Depths around the device's K tile of 64.
constexpr std::array<std::int64_t, 6> kDepths{40, 64, 65, 128, 129, 200};

/// One storage for each layout of a packed weight.
constexpr std::array<WeightStorage, 3> kStorages{WeightStorage::float32, WeightStorage::bfloat16,
                                                 WeightStorage::bfloat16_arithmetic};

std::vector<TokenId> argmax_tokens(KernelSet& kernels, MemoryAccount& account, const Floats& hidden,
                                   const Floats& head, std::int64_t k,
                                   WeightStorage storage = WeightStorage::float32) {
  const std::int64_t m = std::ssize(hidden) / k;
  const std::int64_t v = std::ssize(head) / k;
  const DeviceTensor weight(kernels, account, head, {v, k});
  const DeviceTensor rows(kernels, account, hidden, {m, k});
  const auto packed = kernels.pack_weight(weight.view(), storage, account);
  std::vector<TokenId> tokens(static_cast<std::size_t>(m), -1);
  invariant_argmax(kernels, rows.view(), *packed, tokens);
  return tokens;
}

TEST_F(KernelAgreement, ArgmaxTakesTheCpusTokens) {
  for (const std::int64_t k : kDepths) {
    const Floats head = random_floats(1000 * k, 85);
    for (const std::int64_t m : {1, 8, 21}) {
      const Floats hidden = random_floats(m * k, 86);
      EXPECT_EQ(argmax_tokens(*tested_, account_, hidden, head, k),
                argmax_tokens(*reference_, account_, hidden, head, k))
          << "m " << m << ", k " << k;
    }
  }
}

/// Hidden row p is zero except at depth p, where only column 100 + p is large: losing or moving a
/// depth loses its row's token.
TEST_F(KernelAgreement, ArgmaxReadsEveryDepth) {
  for (const std::int64_t k : kDepths) {
    const std::int64_t v = 100 + k;
    Floats head(static_cast<std::size_t>(v * k), 1.0F);
    Floats hidden(static_cast<std::size_t>(k * k), 0.0F);
    std::vector<TokenId> expected;
    for (std::int64_t p = 0; p < k; ++p) {
      head[static_cast<std::size_t>((100 + p) * k + p)] = 2.0F;
      hidden[static_cast<std::size_t>(p * k + p)] = 1.0F;
      expected.push_back(static_cast<TokenId>(100 + p));
    }
    for (const WeightStorage storage : kStorages) {
      EXPECT_EQ(argmax_tokens(*tested_, account_, hidden, head, k, storage), expected) << "k " << k;
      EXPECT_EQ(argmax_tokens(*reference_, account_, hidden, head, k, storage), expected)
          << "k " << k;
    }
  }
}

/// Columns are permutations of the same values.
Floats columns_of_equal_values(std::int64_t v, std::int64_t k) {
  Floats values = random_floats(k, 88);
  std::mt19937 generator(89);
  Floats head;
  for (std::int64_t column = 0; column < v; ++column) {
    std::shuffle(values.begin(), values.end(), generator);
    head.insert(head.end(), values.begin(), values.end());
  }
  return head;
}

/// Logits tie except for rounding.
TEST_F(KernelAgreement, ArgmaxOfNearTiesFollowsTheOrderOfTheSum) {
  for (const std::int64_t k : kDepths) {
    const Floats head = columns_of_equal_values(300, k);
    Floats hidden;
    for (const float number : random_floats(21, 90)) {
      hidden.insert(hidden.end(), static_cast<std::size_t>(k), number);
    }
    EXPECT_EQ(argmax_tokens(*tested_, account_, hidden, head, k),
              argmax_tokens(*reference_, account_, hidden, head, k))
        << "k " << k;
  }
}

/// Wide, partial and narrow blocks. Every other row ties except for rounding; the rest equal a
/// column, which beats its permutations.
TEST_F(KernelAgreement, ArgmaxOfManyRowsTakesTheTokensOfFew) {
  struct Case {
    std::int64_t m;
    std::int64_t v;
    std::int64_t k;
  };
  for (const auto& [m, v, k] : {Case{60, 16'900, 70}, Case{140, 1930, 290}}) {
    const Floats head = columns_of_equal_values(v, k);
    const Floats numbers = random_floats(m, 90);
    const auto column_of = [&](std::int64_t row) { return row * (v - 1) / (m - 1); };
    Floats hidden;
    for (std::int64_t row = 0; row < m; ++row) {
      if (row % 2 == 0) {
        hidden.insert(hidden.end(), static_cast<std::size_t>(k),
                      numbers[static_cast<std::size_t>(row)]);
      } else {
        const auto column = head.begin() + column_of(row) * k;
        hidden.insert(hidden.end(), column, column + k);
      }
    }
    const DeviceTensor weight(*tested_, account_, head, {v, k});
    const DeviceTensor x(*tested_, account_, hidden, {m, k});
    const auto packed =
        tested_->pack_weight(weight.view(), WeightStorage::bfloat16_arithmetic, account_);
    std::vector<TokenId> many(static_cast<std::size_t>(m), -1);
    std::vector<TokenId> few = many;
    invariant_argmax(*tested_, x.view(), *packed, many);
    for (std::int64_t row = 0; row < m; row += 20) {
      invariant_argmax(*tested_, x.view().rows(row, row + 20), *packed,
                       std::span(few).subspan(static_cast<std::size_t>(row), 20));
    }
    EXPECT_EQ(many, few) << m << " rows";
    for (std::int64_t row = 1; row < m; row += 2) {
      EXPECT_EQ(many[static_cast<std::size_t>(row)], column_of(row)) << "row " << row;
    }
  }
}

/// Equal and best columns in two column tiles.
TEST_F(KernelAgreement, ArgmaxTiesOverSeveralTilesGoToTheSmallestId) {
  const std::int64_t v = 300;
  // 1300: several steps for each warp of a product.
  std::vector<std::int64_t> depths(kDepths.begin(), kDepths.end());
  depths.push_back(1300);
  for (const std::int64_t k : depths) {
    Floats head = random_floats(v * k, 91);
    const Floats best = random_floats(k, 92, 10.0F);
    for (const std::int64_t column : {70, 71, 290}) {
      std::copy(best.begin(), best.end(), head.begin() + column * k);
    }
    Floats hidden = best;
    hidden.insert(hidden.end(), static_cast<std::size_t>(k), 0.0F);
    for (const auto& set : {tested_.get(), reference_.get()}) {
      for (const WeightStorage storage : kStorages) {
        EXPECT_THAT(argmax_tokens(*set, account_, hidden, head, k, storage),
                    ::testing::ElementsAre(70, 0))
            << "k " << k;
      }
    }
  }
}

TEST_F(KernelAgreement, ArgmaxTiesGoToTheSmallestId) {
  Floats head(300, 0.0F);  // [300, 1]: logits are the weights times the hidden value.
  head[70] = 2.0F;
  head[71] = 2.0F;
  head[290] = 2.0F;
  static_cast<void>(run([&](Tensors& t) -> std::vector<TensorView> {
    const auto packed =
        t.kernels.pack_weight(t(head, {300, 1}), WeightStorage::float32, t.account());
    std::vector<TokenId> tokens(3, -1);
    invariant_argmax(t.kernels, t({1.0F, -1.0F, 0.0F}, {3, 1}), *packed, tokens);
    EXPECT_THAT(tokens, ::testing::ElementsAre(70, 0, 0));
    return {};
  }));
}

std::vector<TokenId> sampled_tokens(KernelSet& kernels, MemoryAccount& account,
                                    const Floats& logits, std::span<const SampledRow> rows) {
  const std::int64_t m = std::ssize(rows);
  const DeviceTensor values(kernels, account, logits, {m, std::ssize(logits) / m});
  const Buffer memory(rows.size() * sizeof(TokenId), account, kernels.device());
  const TensorView chosen = memory.view(DType::int32, {m});
  kernels.sample_tokens(values.view(), rows, chosen);
  std::vector<TokenId> tokens(rows.size());
  read_tokens(kernels, chosen, tokens);
  return tokens;
}

/// If each option changes some token, none was ignored.
TEST_F(KernelAgreement, SampledTokensAreTheCpus) {
  const std::vector<SamplingOptions> settings{
      {},
      {.temperature = 1, .seed = 1},
      {.temperature = 1, .seed = 2},
      {.temperature = 30, .seed = 1},
      {.temperature = 1e-300, .seed = 1},
      {.temperature = 2, .top_p = 0.6, .seed = 1},
      {.temperature = 2, .top_p = 0x1.fffffffffffffp-1, .seed = 1},
      {.temperature = 2, .top_k = 3, .seed = 1},
      {.temperature = 5, .top_k = 300, .seed = 1},
      {.temperature = 5, .top_p = 0.5, .top_k = 40, .seed = 1},
      {.temperature = 1, .repetition_penalty = 3, .seed = 1},
      {.repetition_penalty = 4},
  };
  constexpr std::size_t kRowsEach = 8;
  for (const std::int64_t v : {1, 2, 50, 255, 1027, 3001}) {
    for (const bool equals : {false, true}) {
      Floats logits = random_floats(v, 93, 4.0F);
      for (float& logit : logits) {
        logit = equals ? std::round(logit / 2) * 2 : logit;  // includes −0 and 0
      }
      // the likeliest tokens, some of them twice
      std::vector<TokenId> text(static_cast<std::size_t>(v));
      std::iota(text.begin(), text.end(), 0);
      std::ranges::stable_sort(text, std::greater<>(), [&](TokenId token) {
        return logits[static_cast<std::size_t>(token)];
      });
      text.resize(std::min<std::size_t>(text.size(), 30));
      const std::vector<TokenId> alternative = tokens_of(20, static_cast<TokenId>(v), 7);
      std::vector<SampledRow> rows;
      Floats all;
      for (const SamplingOptions& options : settings) {
        for (std::size_t i = 0; i < kRowsEach; ++i) {
          rows.push_back({.options = options,
                          .request = static_cast<PromptId>(i) << 33,
                          .position = 5 + static_cast<std::int64_t>(i),
                          .text = text,
                          .alternative = std::span(alternative).first(i)});
          all.insert(all.end(), logits.begin(), logits.end());
        }
      }
      const auto tokens = sampled_tokens(*tested_, account_, all, rows);
      EXPECT_EQ(tokens, sampled_tokens(*reference_, account_, all, rows)) << v << equals;
      if (v < 1000) {
        continue;
      }
      std::set<std::vector<TokenId>> different;
      for (std::size_t i = 0; i < tokens.size(); i += kRowsEach) {
        different.insert({tokens.begin() + static_cast<std::ptrdiff_t>(i),
                          tokens.begin() + static_cast<std::ptrdiff_t>(i + kRowsEach)});
      }
      // T = 10⁻³⁰⁰ may give the argmax.
      EXPECT_GE(different.size(), settings.size() - 1) << v << equals;
    }
  }
}

TEST_F(KernelAgreement, TopPOfEqualsKeepsTheFirst) {
  constexpr std::int64_t kTokens = 700;
  std::vector<SampledRow> rows;
  for (std::int64_t i = 0; i < 200; ++i) {
    rows.push_back(
        {.options = {.temperature = 1, .top_p = 10.0 / kTokens}, .request = 1, .position = i});
  }
  const Floats logits(static_cast<std::size_t>(kTokens) * rows.size(), -3.0F);
  for (const auto& set : {tested_.get(), reference_.get()}) {
    const auto tokens = sampled_tokens(*set, account_, logits, rows);
    EXPECT_EQ(std::set<TokenId>(tokens.begin(), tokens.end()),
              (std::set<TokenId>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  }
}

TEST_F(KernelAgreement, SamplingRefusesNaN) {
  for (const std::int64_t v : {1, 300}) {
    Floats logits(static_cast<std::size_t>(v), 1.0F);
    logits.back() = std::numeric_limits<float>::quiet_NaN();
    for (const SamplingOptions& options :
         {SamplingOptions{}, SamplingOptions{.temperature = 1},
          SamplingOptions{.temperature = 1, .top_p = 0.5, .top_k = 2}}) {
      for (const auto& set : {tested_.get(), reference_.get()}) {
        const SampledRow row{.options = options};
        EXPECT_THROW(static_cast<void>(sampled_tokens(*set, account_, logits, {&row, 1})),
                     NumericalError);
      }
    }
  }
}

TEST_F(KernelAgreement, SamplingTakesAnInfiniteLogit) {
  for (const std::int64_t v : {3, 300}) {
    Floats logits = random_floats(v, 12);
    logits[1] = std::numeric_limits<float>::infinity();
    for (const SamplingOptions& options :
         {SamplingOptions{}, SamplingOptions{.temperature = 1},
          SamplingOptions{.temperature = 1, .top_p = 0.9},
          SamplingOptions{.temperature = 1, .top_k = 2},
          SamplingOptions{.temperature = 1, .top_p = 0.5, .top_k = 2}}) {
      for (const auto& set : {tested_.get(), reference_.get()}) {
        const SampledRow row{.options = options};
        EXPECT_THAT(sampled_tokens(*set, account_, logits, {&row, 1}), ::testing::ElementsAre(1));
      }
    }
  }
}

TEST_F(KernelAgreement, ArgmaxRefusesNaN) {
  for (const std::int64_t k : {1, 65, 200}) {
    Floats head = random_floats(300 * k, 87);
    head.back() = std::numeric_limits<float>::quiet_NaN();
    const Floats hidden(static_cast<std::size_t>(k), 1.0F);
    for (const auto& set : {tested_.get(), reference_.get()}) {
      for (const WeightStorage storage : kStorages) {
        EXPECT_THROW(static_cast<void>(argmax_tokens(*set, account_, hidden, head, k, storage)),
                     NumericalError);
      }
    }
  }
}

struct CacheProblem {
  static constexpr std::int64_t kSlots = 3;
  static constexpr std::int64_t kCapacity = 96;
  FullSlots slots{kSlots, 2, 7};
  std::int64_t heads = 6;
  std::int64_t key_heads = 2;
  std::int64_t dim = 16;
  std::vector<CacheRow> rows;

  template <class Tensors>
  [[nodiscard]] PagedCache cache(Tensors& tensors) const {
    const Shape shape = slots.shape(key_heads, dim);
    return {tensors.blank(shape), tensors.blank(shape), slots.table()};
  }
  [[nodiscard]] Shape queries() const {
    return {static_cast<std::int64_t>(rows.size()), heads, dim};
  }
};

TEST_F(KernelAgreement, KeysAreRotatedOnTheirWayToTheCache) {
  CacheProblem problem;
  problem.rows = {{1, 60}, {1, 61}, {0, 3}, {1, 61, 61, 80}};
  const std::vector<std::int32_t> two{1, 3};
  for (const auto& [dim, normed, kept] : {std::tuple(10, false, two),
                                          {32, false, two},
                                          {10, true, two},
                                          {32, true, two},
                                          {128, true, std::vector<std::int32_t>{}}}) {
    problem.dim = dim;
    const Shape key{4, problem.key_heads, dim};
    for (const DType type : kElementTypes) {
      const auto results = run_on(*tested_, [&](Tensors& t) -> std::vector<TensorView> {
        const auto cache = [&] {
          const Shape shape = problem.slots.shape(problem.key_heads, dim);
          return PagedCache{t.blank(shape, type), t.blank(shape, type), problem.slots.table()};
        };
        const PagedCache together = cache();
        const PagedCache alone = cache();
        const TestDecodePlan plan(t.kernels, problem.heads, together,
                                  {.tokens = {},
                                   .places = problem.rows,
                                   .kept = kept,
                                   .copies = {},
                                   .table = together.table});
        const RotarySettings settings{.theta = 1e4};
        const TensorView values = t.random(key, 98);
        const auto queries = [&] { return t.random({std::ssize(kept), problem.heads, dim}, 99); };
        HeadNorms norms;
        if (normed) {
          norms = {t.random({dim}, 96), t.random({dim}, 97), 1e-5F};
        }
        const TensorView q = queries();
        t.kernels.rotate_and_write(*plan, DecodeRows::kept, q, t.random(key, 100), values, norms,
                                   settings, together.layer());
        const TensorView expected = queries();
        const TensorView k = t.random(key, 100);
        const auto norm_heads = [&](const TensorView& x, const ConstTensorView& weight) {
          if (normed && !x.empty()) {
            const TensorView heads = x.reshaped({x.dim(0) * x.dim(1), dim});
            t.kernels.rms_norm(heads, weight, norms.epsilon, heads, {});
          }
        };
        norm_heads(expected, norms.q);
        norm_heads(k, norms.k);
        t.kernels.rotary(expected, {}, (*plan).rows(DecodeRows::kept), settings);
        t.kernels.rotary({}, k, (*plan).rows(DecodeRows::all), settings);
        t.kernels.cache_write(*plan, k, values, alone.layer());
        return {q, together.keys, together.values, expected, alone.keys, alone.values};
      });
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(same_bits(results[i], results[i + 3])) << dim << " tensor " << i;
      }
    }
  }
}

TEST_F(KernelAgreement, CachedAttention) {
  CacheProblem problem;
  for (std::int32_t i = 0; i < 20; ++i) {
    problem.rows.push_back({1, 60 + i});
  }
  problem.rows.push_back({0, 0});
  problem.rows.push_back({2, 89});
  problem.rows.push_back({0, 31});
  problem.rows.push_back({0, 32});
  for (std::int32_t i = 0; i < 10; ++i) {
    problem.rows.push_back({1, 70 + i, 70, 80});
  }
  expect_close([&](Tensors& t) -> std::vector<TensorView> {
    const PagedCache cache = problem.cache(t);
    const auto write = [&](std::span<const CacheRow> rows, unsigned seed) {
      const Shape keys{static_cast<std::int64_t>(rows.size()), problem.key_heads, problem.dim};
      cache_write(t.kernels, rows, t(random_floats(keys.elements(), seed), keys),
                  t(random_floats(keys.elements(), seed + 1), keys), cache);
    };
    std::vector<CacheRow> all;
    for (std::int32_t slot = 0; slot < CacheProblem::kSlots; ++slot) {
      for (std::int32_t row = 0; row < CacheProblem::kCapacity; ++row) {
        all.push_back({slot, row});
      }
    }
    write(all, 90);
    write(problem.rows, 92);
    const TensorView queries =
        t(random_floats(problem.queries().elements(), 94), problem.queries());
    const TensorView output = t.blank(problem.queries());
    cached_attention(t.kernels, problem.rows, queries, cache, output);
    const std::vector<CacheCopy> copies{{1, 80, 70}, {1, 81, 71}, {0, 0, 5}};
    cache_copy(t.kernels, copies, cache);
    // Key layout is private, so attention checks the copy.
    const TensorView behind = t.blank(problem.queries());
    cached_attention(t.kernels, problem.rows, queries, cache, behind);
    return {output, behind, cache.values};
  });
}

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
    const PagedCache cache = problem.cache(t);
    cache_write(t.kernels, problem.rows, t(k, key), t(v, key), cache);
    const TensorView queries = t(q, query);
    const TensorView together = t.blank(query);
    cached_attention(t.kernels, problem.rows, queries, cache, together);
    const TensorView alone = t.blank(query);
    for (std::int64_t row = 0; row < query[0]; ++row) {
      cached_attention(t.kernels, std::span(problem.rows).subspan(static_cast<std::size_t>(row), 1),
                       queries.rows(row, row + 1), cache, alone.rows(row, row + 1));
    }
    const TensorView packed = t.blank(query);
    PackedLayout layout;
    layout.num_rows = query[0];
    layout.segments = {{0, query[0], 0, 0, 0}};
    packed_attention(t.kernels, queries, t(k, key), t(v, key), layout, packed,
                     t.blank({query[0], problem.heads}));
    return {together, alone, packed};
  });
  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(same_bits(results[0], results[2]));
}

/// Blocks share long contexts if rows are few (splits_keys).
TEST_F(KernelAgreement, SplitKeysDoNotDependOnTheBatch) {
  CacheProblem problem;
  problem.slots = FullSlots(2, 7, 11);
  problem.dim = 20;
  std::vector<CacheRow> all;
  for (std::int32_t slot = 0; slot < 2; ++slot) {
    for (std::int32_t row = 0; row < 7 * kCachePageRows; ++row) {
      all.push_back({slot, row});
    }
  }
  // Ends of splits; branches that fork within one.
  for (const std::int32_t position : {0, 127, 128, 255, 256, 300, 383, 384}) {
    problem.rows.push_back({0, position});
    problem.rows.push_back({1, position});
  }
  for (std::int32_t i = 0; i < 12; ++i) {
    problem.rows.push_back({1, 250 + i, 250, 400});
  }
  const std::size_t few = problem.rows.size();
  std::vector<CacheRow> beside_short = problem.rows;
  while (problem.rows.size() < few + 140) {
    const auto i = static_cast<std::int32_t>(problem.rows.size());
    problem.rows.push_back({i % 2, 200 + i % 5});
    beside_short.push_back({i % 2, i % 5});
  }
  const Shape query = problem.queries();
  const Shape keys{std::ssize(all), problem.key_heads, problem.dim};
  const Floats q = random_floats(query.elements(), 100);
  const auto work = [&](Tensors& t) -> std::vector<TensorView> {
    const PagedCache cache = problem.cache(t);
    cache_write(t.kernels, all, t(random_floats(keys.elements(), 101), keys),
                t(random_floats(keys.elements(), 102), keys), cache);
    const TensorView queries = t(q, query);
    const TensorView many = t.blank(query);
    const TensorView longest = t.blank(query);
    const TensorView some = t.blank(query);
    const TensorView alone = t.blank(query);
    const std::span<const CacheRow> rows(problem.rows);
    const auto count = static_cast<std::int64_t>(few);
    cached_attention(t.kernels, rows, queries, cache, many);
    cached_attention(t.kernels, beside_short, queries, cache, longest);
    cached_attention(t.kernels, rows.first(few), queries.rows(0, count), cache,
                     some.rows(0, count));
    for (std::int64_t row = 0; row < count; row += 3) {
      cached_attention(t.kernels, rows.subspan(static_cast<std::size_t>(row), 1),
                       queries.rows(row, row + 1), cache, alone.rows(row, row + 1));
    }
    return {many.rows(0, count), some.rows(0, count), alone.rows(0, count), longest.rows(0, count)};
  };
  const Results results = run(work);
  EXPECT_LT(relative_error(results.tested[0], results.reference[0]), kTolerance);
  EXPECT_TRUE(same_bits(results.tested[0], results.tested[1]));
  EXPECT_TRUE(same_bits(results.tested[0], results.tested[3]));
  const std::int64_t row_floats = query.elements() / query[0];
  for (std::size_t row = 0; row < few; row += 3) {
    const auto begin = static_cast<std::ptrdiff_t>(row) * row_floats;
    const auto row_of = [&](const Floats& values) {
      return Floats(values.begin() + begin, values.begin() + begin + row_floats);
    };
    EXPECT_TRUE(same_bits(row_of(results.tested[0]), row_of(results.tested[2]))) << "row " << row;
  }
}

/// Large heads must fit an A100's 163 KiB of shared memory.
TEST_F(KernelAgreement, CachedAttentionHasRoomForEveryTile) {
  for (const std::int64_t dim : {64, 80, 96, 128, 256}) {
    for (std::int64_t group = 1; group <= 32; ++group) {
      SCOPED_TRACE(std::to_string(group) + " heads of " + std::to_string(dim));
      CacheProblem problem;
      problem.heads = group;
      problem.key_heads = 1;
      problem.dim = dim;
      problem.slots = FullSlots(1, 3, 7);
      const std::int64_t rows = 32 / group;
      std::vector<CacheRow> all;
      for (std::int32_t position = 0; position < 129 + rows / 2; ++position) {
        all.push_back({0, position});
      }
      problem.rows.assign(all.end() - rows, all.end());
      const Shape query = problem.queries();
      const Shape key{std::ssize(all), 1, dim};
      const Results results = run([&](Tensors& t) -> std::vector<TensorView> {
        const PagedCache cache = problem.cache(t);
        cache_write(t.kernels, all, t.random(key, 110), t.random(key, 111), cache);
        const TensorView queries = t.random(query, 112);
        const TensorView together = t.blank(query);
        cached_attention(t.kernels, problem.rows, queries, cache, together);
        const TensorView alone = t.blank({1, group, dim});
        cached_attention(t.kernels, std::span(problem.rows).last(1), queries.rows(rows - 1, rows),
                         cache, alone);
        return {together, together.rows(rows - 1, rows), alone};
      });
      EXPECT_LT(relative_error(results.tested[0], results.reference[0]), kTolerance);
      EXPECT_TRUE(same_bits(results.tested[1], results.tested[2]));
    }
  }
}

TEST_F(KernelAgreement, InvariantLinearDoesNotDependOnTheBatch) {
  const std::int64_t m = 70;
  const std::int64_t n = 77;
  const std::int64_t k = 290;
  for (const WeightStorage storage : kStorages) {
    const Work work = [&](Tensors& t) -> std::vector<TensorView> {
      const auto weight =
          t.kernels.pack_weight(t(random_floats(n * k, 98), {n, k}), storage, t.account());
      const TensorView x = t(random_floats(m * k, 99), {m, k});
      std::vector<TensorView> results;
      for (const std::int64_t batch :
           {m, std::int64_t{32}, std::int64_t{16}, std::int64_t{8}, std::int64_t{1}}) {
        const TensorView y = t.blank({m, n});
        for (std::int64_t row = 0; row < m; row += batch) {
          const std::int64_t end = std::min(row + batch, m);
          t.kernels.invariant_linear(x.rows(row, end), *weight, {}, y.rows(row, end));
        }
        results.push_back(y);
      }
      return results;
    };
    const std::vector<Floats> results = run_on(*tested_, work);
    for (const Floats& result : results) {
      EXPECT_TRUE(same_bits(results.front(), result));
    }
  }
}

}  // namespace
}  // namespace jforge
