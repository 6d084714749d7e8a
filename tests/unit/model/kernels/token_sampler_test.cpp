/// Compares with the plainly computed distribution (METHOD.md §6.6).

#include "model/kernels/token_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "runtime/error.h"
#include "tests/unit/model/kernels/sampling_law.h"

namespace jforge::test {
namespace {

std::vector<float> random_logits(std::size_t vocabulary, double spread, std::uint64_t seed) {
  RandomStream stream(seed, RandomPurpose::test);
  std::vector<float> logits(vocabulary);
  for (float& logit : logits) {
    logit = static_cast<float>(spread * stream.normal());
  }
  return logits;
}

TokenId sample(TokenSampler& sampler, const SamplingOptions& options, std::vector<float> logits,
               std::span<const TokenId> before, PromptId request, std::int64_t position) {
  return sampler.choose(logits, {.options = options,
                                 .request = request,
                                 .position = position,
                                 .text = before.first(before.size() / 2),
                                 .alternative = before.subspan(before.size() / 2)});
}

std::vector<std::int64_t> draw(const SamplingOptions& options, const std::vector<float>& logits,
                               std::span<const TokenId> before, std::int64_t draws) {
  TokenSampler sampler;
  std::vector<std::int64_t> counts(logits.size());
  for (std::int64_t i = 0; i < draws; ++i) {
    counts[static_cast<std::size_t>(sample(sampler, options, logits, before, i % 7, i / 7))] += 1;
  }
  return counts;
}

TEST(TokenSampler, AnInfiniteLogitIsTaken) {
  TokenSampler sampler;
  for (const std::int32_t top_k : {0, 2}) {
    for (const double top_p : {0.9, 1.0}) {
      const SamplingOptions options{.temperature = 1, .top_p = top_p, .top_k = top_k, .seed = 1};
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      EXPECT_EQ(sample(sampler, options, {1, kInfinity, 2, 3}, {}, 0, 0), 1);
      EXPECT_EQ(sample(sampler, options, {3, kInfinity, 1}, {}, 0, 0), 1);
    }
  }
}

TEST(LikeliestTokens, AreTheFirstOfAllSortedWithTheirLogSoftmax) {
  for (const std::size_t vocabulary : {1, 3, 8, 500}) {
    for (const double spread : {0.0, 0.1, 3.0, 60.0}) {
      std::vector<float> logits = random_logits(vocabulary, spread, vocabulary);
      logits.back() = logits.front();  // A tie.
      std::vector<TokenId> order(vocabulary);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, std::greater(), [&](TokenId token) {
        return logits[static_cast<std::size_t>(token)];
      });
      double sum = 0;
      for (const float logit : logits) {
        sum += std::exp(static_cast<double>(logit));
      }
      for (const std::size_t count : {1, 2, 8}) {
        std::vector<LikelyToken> found(count);
        likeliest_tokens(logits, found);
        for (std::size_t i = 0; i < count; ++i) {
          const bool exists = i < vocabulary;
          EXPECT_EQ(found[i].token, exists ? order[i] : kNoToken);
          const double expected = exists
                                      ? logits[static_cast<std::size_t>(order[i])] - std::log(sum)
                                      : -std::numeric_limits<double>::infinity();
          EXPECT_TRUE(exists ? std::abs(found[i].log_probability - expected) < 1e-4
                             : found[i].log_probability == expected);
        }
      }
    }
  }
}

TEST(LikeliestTokens, AreNoneIfTheLargestLogitIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& logits :
       {std::vector{nan, nan}, std::vector{0.0F, kInfinity}, std::vector{-kInfinity}}) {
    std::vector<LikelyToken> found(2);
    likeliest_tokens(logits, found);
    for (const LikelyToken& one : found) {
      EXPECT_EQ(one.token, kNoToken);
      EXPECT_EQ(one.log_probability, -kInfinity);
    }
  }
}

TEST(TokenSampler, DrawsFollowTheLawAtEverySetting) {  // I23
  const std::vector<TokenId> before{3, 5, 3, 0, 5, 5};
  std::uint64_t seed = 0;
  for (const std::size_t vocabulary : {2, 7, 50}) {
    const auto logits = random_logits(vocabulary, 1.5, vocabulary);
    for (const double temperature : {0.3, 1.0, 2.5}) {
      for (const double top_p : {0.5, 0.9, 1.0}) {
        for (const std::int32_t top_k : {0, 1, 5}) {
          for (const double penalty : {1.0, 1.5}) {
            const SamplingOptions options{.temperature = temperature,
                                          .top_p = top_p,
                                          .top_k = top_k,
                                          .repetition_penalty = penalty,
                                          .seed = ++seed};
            const std::span<const TokenId> seen(before.data(),
                                                penalty == 1 || vocabulary < 7 ? 0 : before.size());
            EXPECT_TRUE(
                follows(draw(options, logits, seen, 5000), sampling_law(options, logits, seen)))
                << vocabulary << " tokens, T " << temperature << ", top_p " << top_p << ", top_k "
                << top_k << ", penalty " << penalty;
          }
        }
      }
    }
  }
}

TEST(TokenSampler, TheTestTellsAnotherLaw) {
  const auto logits = random_logits(7, 1.5, 7);
  const auto counts = draw({.temperature = 1}, logits, {}, 5000);
  EXPECT_TRUE(follows(counts, sampling_law({.temperature = 1}, logits, {})));
  EXPECT_FALSE(follows(counts, sampling_law({.temperature = 1.15}, logits, {})));
  EXPECT_FALSE(follows(counts, sampling_law({.temperature = 1, .top_p = 0.99}, logits, {})));
}

TEST(TokenSampler, NoiseIsNamedAndNotDrawnInOrder) {
  const auto logits = random_logits(200, 0.5, 1);
  const SamplingOptions options{.temperature = 1, .seed = 3};
  TokenSampler sampler;
  std::vector<TokenId> forth;
  for (std::int64_t position = 0; position < 50; ++position) {
    forth.push_back(sample(sampler, options, logits, {}, 4, position));
  }
  for (std::int64_t position = 49; position >= 0; --position) {
    EXPECT_EQ(sample(sampler, options, logits, {}, 4, position),
              forth[static_cast<std::size_t>(position)]);
  }
  const auto differ = [&](const SamplingOptions& other, PromptId request) {
    std::int64_t others = 0;
    for (std::int64_t position = 0; position < 50; ++position) {
      others += sample(sampler, other, logits, {}, request, position) !=
                        forth[static_cast<std::size_t>(position)]
                    ? 1
                    : 0;
    }
    return others;
  };
  EXPECT_GT(differ({.temperature = 1, .seed = 4}, 4), 40);
  EXPECT_GT(differ(options, 5), 40);
  // Keeping every token is another code path.
  EXPECT_EQ(differ({.temperature = 1, .top_k = 199, .seed = 3}, 4), 0);
}

TEST(TokenSampler, TemperatureZeroIsTheArgmaxAndItsLimit) {
  TokenSampler sampler;
  const std::vector<float> ties{1, 4, 4, -2};
  EXPECT_EQ(sample(sampler, {}, ties, {}, 0, 0), 1);
  for (std::int64_t position = 0; position < 300; ++position) {
    const auto logits = random_logits(60, 1, static_cast<std::uint64_t>(position));
    const TokenId greedy = sample(sampler, {}, logits, {}, 1, position);
    EXPECT_EQ(greedy, std::ranges::max_element(logits) - logits.begin());
    for (const double temperature : {1e-5, 1e-300}) {
      for (const double top_p : {0.7, 1.0}) {
        EXPECT_EQ(
            sample(sampler, {.temperature = temperature, .top_p = top_p}, logits, {}, 1, position),
            greedy);
      }
    }
  }
}

TEST(TokenSampler, TheTokenThatCrossesTopPIsKept) {
  const std::vector<float> logits{std::log(0.125F), std::log(0.5F), std::log(0.125F),
                                  std::log(0.25F)};
  const auto kept = [&](double top_p) {
    const auto counts = draw({.temperature = 1, .top_p = top_p}, logits, {}, 2000);
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) {
        tokens.push_back(static_cast<TokenId>(i));
      }
    }
    return tokens;
  };
  using Tokens = std::vector<TokenId>;
  EXPECT_EQ(kept(0.01), (Tokens{1}));
  EXPECT_EQ(kept(0.499), (Tokens{1}));
  EXPECT_EQ(kept(0.501), (Tokens{1, 3})) << "0.5 does not reach it, 0.75 crosses it";
  EXPECT_EQ(kept(0.749), (Tokens{1, 3}));
  EXPECT_EQ(kept(0.76), (Tokens{0, 1, 3})) << "of equals the smaller id";
  EXPECT_EQ(kept(0.88), (Tokens{0, 1, 2, 3}));
}

TEST(TokenSampler, TopKKeepsWhatEqualsTheLast) {
  const std::vector<float> logits{0, 2, 1, 1, -1};
  const auto counts = draw({.temperature = 1, .top_k = 2}, logits, {}, 2000);
  EXPECT_EQ(counts[0], 0);
  EXPECT_GT(counts[2], 0);
  EXPECT_GT(counts[3], 0);
  EXPECT_EQ(counts[4], 0);
  EXPECT_EQ(draw({.temperature = 3, .top_k = 1}, logits, {}, 500)[1], 500);
}

TEST(TokenSampler, APenaltyCountsOnceForEachTokenAndRow) {
  TokenSampler sampler;
  const SamplingOptions options{.repetition_penalty = 2};
  // 3 / 2 > 1.4, but 3 / 4 would be less: a token is penalised once.
  EXPECT_EQ(sample(sampler, options, {1.4F, 3}, std::vector<TokenId>{1, 1, 1}, 0, 0), 1);
  EXPECT_EQ(sample(sampler, options, {1.6F, 3}, std::vector<TokenId>{1, 1, 1}, 0, 0), 0);
  EXPECT_EQ(sample(sampler, options, {-1, -1.5F}, std::vector<TokenId>{0}, 0, 0), 1)
      << "a negative logit is multiplied";
  EXPECT_EQ(sample(sampler, options, {1.6F, 3}, {}, 0, 0), 1) << "another row begins without";
}

TEST(TokenSampler, BadValuesAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_NO_THROW(SamplingOptions{}.validate());
  for (const double bad : {-0.1, nan, infinite}) {
    EXPECT_THROW(SamplingOptions{.temperature = bad}.validate(), ConfigError) << bad;
  }
  for (const double bad : {0.0, -0.5, 1.01, nan}) {
    EXPECT_THROW(SamplingOptions{.top_p = bad}.validate(), ConfigError) << bad;
  }
  for (const double bad : {0.0, -1.0, 1e-60, 1e60, nan, infinite}) {
    EXPECT_THROW(SamplingOptions{.repetition_penalty = bad}.validate(), ConfigError) << bad;
  }
  EXPECT_THROW(SamplingOptions{.top_k = -1}.validate(), ConfigError);
  TokenSampler sampler;
  const float broken = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sample(sampler, {}, {1, broken, 2}, {}, 0, 0), kNoToken);
  EXPECT_EQ(sample(sampler, {.temperature = 1}, {1, 2, broken}, {}, 0, 0), kNoToken);
  const SamplingOptions penalty{.repetition_penalty = 2};
  for (const TokenId outside : {-1, 2}) {
    EXPECT_THROW((void)sample(sampler, penalty, {1, 2}, std::vector{outside}, 0, 0), InternalError);
  }
}

TEST(TokenSampler, WhatHasNoEffectMakesNoDifference) {
  const SamplingOptions greedy{.top_p = 0.5, .top_k = 3, .seed = 9};
  EXPECT_TRUE(greedy.greedy());
  EXPECT_TRUE(greedy.chooses_as({}));
  EXPECT_FALSE(greedy.chooses_as({.repetition_penalty = 1.1}));
  const SamplingOptions sampled{.temperature = 1, .seed = 9};
  EXPECT_TRUE(sampled.chooses_as(sampled));
  EXPECT_FALSE(sampled.chooses_as({.temperature = 1, .seed = 8}));
  EXPECT_FALSE(sampled.chooses_as({.temperature = 1, .top_p = 0.9, .seed = 9}));
}

}  // namespace
}  // namespace jforge::test
