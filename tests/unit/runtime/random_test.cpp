#include "runtime/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <vector>

namespace jforge {
namespace {

using Block = std::array<std::uint32_t, 4>;

// Known answers of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, SameNameSameDraws) {
  RandomStream a(11, RandomPurpose::test, 1, 2, 3);
  RandomStream b(11, RandomPurpose::test, 1, 2, 3);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(a.next_u32(), b.next_u32());
  }
}

TEST(RandomStream, ACopyContinuesFromTheSamePlace) {
  RandomStream a(11, RandomPurpose::test);
  (void)a.next_u32();
  RandomStream b = a;
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(a.next_u64(), b.next_u64());
  }
}

TEST(RandomStream, ABlockIsTheDrawsOfThatPlace) {
  RandomStream drawn(3, RandomPurpose::test, 1, 2, 3);
  RandomStream elsewhere = drawn;
  (void)elsewhere.next_u64();
  for (std::uint64_t block = 0; block < 5; ++block) {
    for (const std::uint32_t expected : elsewhere.block_at(block)) {
      EXPECT_EQ(drawn.next_u32(), expected);
    }
  }
}

TEST(RandomStream, EveryPartOfTheNameMatters) {
  std::set<std::uint64_t> first_draws;
  int streams = 0;
  for (const std::uint64_t seed : {0ULL, 1ULL, 1ULL << 40}) {
    for (const auto purpose : {RandomPurpose::jacobi_draft, RandomPurpose::sample_order}) {
      for (std::uint64_t round = 0; round < 3; ++round) {
        for (const std::uint64_t item : {0ULL, 1ULL, 1ULL << 33}) {
          for (std::uint64_t block = 0; block < 50; ++block) {
            first_draws.insert(RandomStream(seed, purpose, round, item, block).next_u64());
            ++streams;
          }
        }
      }
    }
  }
  EXPECT_EQ(first_draws.size(), static_cast<std::size_t>(streams));
}

/// Expected value bound − 1, variance 2(bound − 1).
double chi_square(std::uint64_t bound, int draws) {
  RandomStream random(5, RandomPurpose::test, 0, bound);
  std::vector<int> counts(bound);
  for (int i = 0; i < draws; ++i) {
    ++counts.at(random.below(bound));
  }
  const double expected = static_cast<double>(draws) / static_cast<double>(bound);
  double sum = 0;
  for (const int count : counts) {
    sum += (count - expected) * (count - expected) / expected;
  }
  return sum;
}

TEST(RandomStream, BelowIsUniform) {
  for (const std::uint64_t bound : {2ULL, 3ULL, 7ULL, 100ULL}) {
    const double freedom = static_cast<double>(bound - 1);
    // Five standard deviations, and not suspiciously even.
    EXPECT_LT(chi_square(bound, 200'000), freedom + 5 * std::sqrt(2 * freedom) + 5) << bound;
    EXPECT_GT(chi_square(bound, 200'000), freedom * 0.001 / static_cast<double>(bound)) << bound;
  }
}

TEST(RandomStream, BelowHasNoModuloBiasForHugeBounds) {
  // A plain remainder would give the lower half twice as often as the upper.
  const std::uint64_t bound = 3ULL << 62;
  RandomStream random(5, RandomPurpose::test);
  int low = 0;
  constexpr int kDraws = 60'000;
  for (int i = 0; i < kDraws; ++i) {
    const auto value = random.below(bound);
    ASSERT_LT(value, bound);
    low += value < (1ULL << 62) ? 1 : 0;
  }
  EXPECT_NEAR(low, kDraws / 3.0, 5 * std::sqrt(kDraws * 2.0 / 9.0));
}

TEST(RandomStream, BelowOneIsZero) {
  RandomStream random(1, RandomPurpose::test);
  EXPECT_EQ(random.below(1), 0U);
}

TEST(RandomStream, UniformAndNormalHaveTheirMoments) {
  RandomStream random(3, RandomPurpose::test);
  constexpr int kDraws = 200'000;
  double uniform_sum = 0;
  double normal_sum = 0;
  double normal_squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    uniform_sum += u;
    const double z = random.normal();
    ASSERT_TRUE(std::isfinite(z));
    normal_sum += z;
    normal_squares += z * z;
  }
  EXPECT_NEAR(uniform_sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(normal_sum / kDraws, 0.0, 5 * std::sqrt(1.0 / kDraws));
  EXPECT_NEAR(normal_squares / kDraws, 1.0, 5 * std::sqrt(2.0 / kDraws));
}

}  // namespace
}  // namespace jforge
