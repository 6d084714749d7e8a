#include "results/analysis/paired_comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "runtime/error.h"

namespace jforge {
namespace {

using Verdicts = std::vector<double>;

TEST(PairedComparison, EqualVerdictsDoNotDiffer) {
  const Verdicts verdicts = {1, 0, 1, 1, 0};
  const PairedComparison result = compare_paired(verdicts, verdicts);
  EXPECT_EQ(result.n, 5);
  EXPECT_EQ(result.only_first, 0);
  EXPECT_EQ(result.only_second, 0);
  EXPECT_EQ(result.difference, 0);
  EXPECT_LT(result.low, -0.1) << "five problems prove no equality";
  EXPECT_GT(result.high, 0.1);
  EXPECT_EQ(result.p_value, 1);
  EXPECT_FALSE(result.beyond_chance());
}

TEST(PairedComparison, CountsFlipsInBothDirections) {
  const PairedComparison result = compare_paired(Verdicts{1, 1, 0, 0, 1, 1, 1, 1, 1, 1},
                                                 Verdicts{0, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_EQ(result.only_first, 1);
  EXPECT_EQ(result.only_second, 2);
  EXPECT_NEAR(result.difference, 0.1, 1e-12);
  EXPECT_LT(result.low, 0);
  EXPECT_GT(result.high, 0.1);
  EXPECT_FALSE(result.beyond_chance());
}

TEST(PairedComparison, ExactTestHasTheBinomialsValues) {
  const auto p_value = [](int only_first, int only_second) {
    Verdicts first;
    Verdicts second;
    for (int i = 0; i < only_first + only_second; ++i) {
      first.push_back(i < only_first ? 1 : 0);
      second.push_back(i < only_first ? 0 : 1);
    }
    return compare_paired(first, second).p_value;
  };
  EXPECT_NEAR(p_value(0, 1), 1, 1e-12);
  EXPECT_NEAR(p_value(0, 5), 0.0625, 1e-12);
  EXPECT_NEAR(p_value(5, 0), 0.0625, 1e-12);
  EXPECT_NEAR(p_value(1, 9), 22.0 / 1024, 1e-12);
  EXPECT_NEAR(p_value(4, 4), 1, 1e-12);
}

/// Equal completions tell no more than one.
TEST(PairedComparison, CompletionsOfAProblemAreNotIndependent) {
  Verdicts first(10, 0.5);
  Verdicts second(10, 0.5);
  for (std::size_t i = 0; i < 10; ++i) {
    second[i] += i % 2 == 0 ? 0.5 : -0.375;
  }
  const PairedComparison result = compare_paired(first, second);
  EXPECT_EQ(result.n, 10);
  EXPECT_NEAR(result.difference, 0.0625, 1e-12);
  EXPECT_NEAR(result.low, -0.2674, 1e-4);  // s = 0.4612, t(9) = 2.262: 0.0625 ± 0.3299
  EXPECT_NEAR(result.high, 0.3924, 1e-4);
  EXPECT_FALSE(result.beyond_chance());
  const PairedComparison one = compare_paired(Verdicts{0.25}, Verdicts{1});
  EXPECT_EQ(one.low, -1);
  EXPECT_EQ(one.high, 1);
}

TEST(PairedComparison, BeyondChanceIsWhatIntervalAndTestSay) {
  Verdicts first(100, 1);
  Verdicts second(100, 1);
  std::fill_n(first.begin(), 5, 0);
  const PairedComparison result = compare_paired(first, second);
  EXPECT_GT(result.low, 0);
  EXPECT_NEAR(result.p_value, 0.0625, 1e-12);
  EXPECT_FALSE(result.beyond_chance());
}

TEST(PairedComparison, ACleanGainIsBeyondChance) {
  Verdicts first(200, 0);
  Verdicts second(200, 0);
  for (std::size_t i = 0; i < 100; ++i) {
    second[i] = 1;
    first[i] = i < 60 ? 1 : 0;
  }
  const PairedComparison gain = compare_paired(first, second);
  EXPECT_NEAR(gain.difference, 0.2, 1e-12);
  EXPECT_GT(gain.low, 0.1);
  EXPECT_LT(gain.high, 0.3);
  EXPECT_TRUE(gain.beyond_chance());
  EXPECT_LT(gain.p_value, 1e-6);
  const PairedComparison loss = compare_paired(second, first);
  EXPECT_TRUE(loss.beyond_chance());
  EXPECT_LT(loss.high, 0);
}

TEST(PairedComparison, NeedsTheSameProblems) {
  EXPECT_THROW((void)compare_paired(Verdicts{}, Verdicts{}), InternalError);
  EXPECT_THROW((void)compare_paired(Verdicts{1}, Verdicts{1, 0}), InternalError);
}

}  // namespace
}  // namespace jforge
