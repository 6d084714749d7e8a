#include "data/tasks/score_interval.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "runtime/error.h"

namespace jforge {
namespace {

void expect_interval(const ScoreInterval& found, double low, double high) {
  EXPECT_NEAR(found.low, low, 5e-5);
  EXPECT_NEAR(found.high, high, 5e-5);
}

/// Newcombe, "Two-sided confidence intervals for the single proportion" (1998), table I, method 3.
TEST(WilsonInterval, HasThePublishedValues) {
  expect_interval(wilson_interval(81.0 / 263, 263), 0.2553, 0.3662);
  expect_interval(wilson_interval(15.0 / 148, 148), 0.0624, 0.1605);
  expect_interval(wilson_interval(0, 20), 0, 0.1611);
  expect_interval(wilson_interval(1.0 / 29, 29), 0.0061, 0.1718);
}

TEST(WilsonInterval, DoesNotCollapseAtTheEnds) {
  for (const std::int64_t n : {1, 4, 500, 1000}) {
    const ScoreInterval all = wilson_interval(1, n);
    EXPECT_EQ(all.high, 1);
    EXPECT_LT(all.low, 1 - 1.0 / static_cast<double>(n + 4));
    const ScoreInterval none = wilson_interval(0, n);
    EXPECT_EQ(none.low, 0);
    EXPECT_NEAR(none.high, 1 - all.low, 1e-12);
  }
  expect_interval(wilson_interval(1, 500), 0.9924, 1);
}

TEST(WilsonInterval, RefusesWhatIsNoShare) {
  EXPECT_THROW((void)wilson_interval(0.5, 0), InternalError);
  EXPECT_THROW((void)wilson_interval(1.5, 3), InternalError);
  EXPECT_THROW((void)wilson_interval(std::nan(""), 3), InternalError);
}

/// Computed in Python from Newcombe's method 10.
TEST(PairedDifferenceInterval, HasTheMethodsValues) {
  expect_interval(paired_difference_interval({36, 2, 12, 0}), 0.0569, 0.3404);
  expect_interval(paired_difference_interval({43, 0, 8, 5}), 0.0446, 0.2525);
  expect_interval(paired_difference_interval({2, 0, 8, 40}), 0.0506, 0.2854);
  expect_interval(paired_difference_interval({43, 8, 0, 5}), -0.2525, -0.0446);
  expect_interval(paired_difference_interval({54, 0, 0, 0}), -0.0664, 0.0664);
  EXPECT_THROW((void)paired_difference_interval({}), InternalError);
}

/// Coverage over all outcomes of `n` problems whose cells have these probabilities.
double coverage(int n, double both, double only_first, double only_second) {
  const double neither = 1 - both - only_first - only_second;
  double covered = 0;
  for (int a = 0; a <= n; ++a) {
    for (int b = 0; a + b <= n; ++b) {
      for (int c = 0; a + b + c <= n; ++c) {
        const int d = n - a - b - c;
        const ScoreInterval interval = paired_difference_interval({a, b, c, d});
        const double truth = only_second - only_first;
        if (interval.low <= truth && truth <= interval.high) {
          covered += std::exp(std::lgamma(n + 1.0) - std::lgamma(a + 1.0) - std::lgamma(b + 1.0) -
                              std::lgamma(c + 1.0) - std::lgamma(d + 1.0) + a * std::log(both) +
                              b * std::log(only_first) + c * std::log(only_second) +
                              d * std::log(neither));
        }
      }
    }
  }
  return covered;
}

TEST(PairedDifferenceInterval, CoversTheTruthAsOftenAsItSays) {
  for (const auto& [both, only_first, only_second] :
       std::vector<std::tuple<double, double, double>>{
           {0.7, 0.1, 0.1}, {0.5, 0.2, 0.1}, {0.9, 0.05, 0.02}, {0.25, 0.25, 0.25}}) {
    // A discrete distribution cannot hit 0.95; near the ends the method errs on the safe side.
    EXPECT_GE(coverage(20, both, only_first, only_second), 0.945) << both;
  }
}

TEST(Student, QuantilesAreTheTables) {
  EXPECT_EQ(student_quantile(2), 4.303);
  EXPECT_NEAR(student_quantile(10), 2.2281, 1e-3);
  EXPECT_NEAR(student_quantile(30), 2.0423, 1e-3);
  EXPECT_NEAR(student_quantile(100), 1.9840, 1e-3);
  EXPECT_THROW((void)student_quantile(0), InternalError);
}

}  // namespace
}  // namespace jforge
