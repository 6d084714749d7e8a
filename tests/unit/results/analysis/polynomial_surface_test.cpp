#include "results/analysis/polynomial_surface.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "runtime/error.h"
#include "runtime/random.h"

namespace jforge {
namespace {

std::vector<SurfacePoint> curve(const std::vector<double>& xs,
                                const std::function<double(double)>& f) {
  std::vector<SurfacePoint> points;
  for (const double x : xs) {
    points.push_back({{x}, f(x)});
  }
  return points;
}

TEST(FitSurface, FindsTheCoefficientsOfACubic) {
  // Unscaled, so that the terms are x^e.
  const auto surface = fit_surface(curve({-1, -0.6, -0.2, 0, 0.2, 0.6, 1},
                                         [](double x) { return 3 - 2 * x + 0.5 * x * x * x; }));
  ASSERT_TRUE(surface);
  ASSERT_EQ(surface->degree, 3);
  const std::vector<double> expected = {3, -2, 0, 0.5};
  for (std::size_t term = 0; term < 4; ++term) {
    const int exponent = surface->exponents[term][0];
    EXPECT_NEAR(surface->coefficients[term], expected[static_cast<std::size_t>(exponent)], 1e-9);
  }
  EXPECT_LT(surface->cross_validation_error, 1e-8);
}

TEST(FitSurface, PredictsBetweenThePointsOfFourKeys) {
  const auto f = [](double a, double b, double c) { return a * b - c + 2 * c * c; };
  std::vector<SurfacePoint> points;
  for (const double a : {1, 2, 3}) {
    for (const double b : {0.5, 0.6, 0.7}) {
      for (const double c : {1, 2, 3}) {
        points.push_back({{a, b, 7, c}, f(a, b, c)});  // a constant key
      }
    }
  }
  const auto surface = fit_surface(points);
  ASSERT_TRUE(surface);
  EXPECT_EQ(surface->degree, 2);
  EXPECT_NEAR(surface->evaluate(std::vector{1.5, 0.65, 7.0, 2.9}), f(1.5, 0.65, 2.9), 1e-9);
  EXPECT_THROW((void)surface->evaluate(std::vector{1.5, 0.65}), InternalError);
}

TEST(FitSurface, TakesAKeyThatGrowsByFactorsAsItsLogarithm) {
  const auto f = [](double n) { return 10 - std::pow(std::log2(n) - 5, 2); };
  const auto surface = fit_surface(curve({2, 4, 8, 16, 32, 64, 128}, f));
  ASSERT_TRUE(surface);
  EXPECT_EQ(surface->degree, 2);
  EXPECT_NEAR(surface->evaluate(std::vector{23.0}), f(23), 1e-9);
  EXPECT_FALSE(fit_surface(curve({1, 2, 3, 4}, f))->axes[0].geometric());
  EXPECT_FALSE(
      fit_surface(curve({0, 1, 10, 100}, [](double x) { return x; }))->axes[0].geometric());
}

TEST(FitSurface, NoiseDoesNotRaiseTheDegree) {
  RandomStream noise(11, RandomPurpose::test);
  int raised = 0;
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<SurfacePoint> points;
    for (int x = 0; x < 15; ++x) {
      points.push_back({{static_cast<double>(x)}, 100 - std::pow(x - 7, 2) + 2 * noise.normal()});
    }
    const auto surface = fit_surface(points);
    ASSERT_TRUE(surface);
    EXPECT_GE(surface->degree, 2);
    raised += surface->degree > 4 ? 1 : 0;
    EXPECT_GT(surface->cross_validation_error, 1);
    EXPECT_LT(surface->cross_validation_error, 5);
  }
  EXPECT_LE(raised, 4);
}

TEST(FitSurface, ItsErrorIsThatOfFitsWithoutThePoint) {
  // A line through the means of the others.
  const std::vector<double> values = {1, 2, 4, 11, 12, 15};
  std::vector<SurfacePoint> points;
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    points.push_back({{i < 3 ? 0.0 : 1.0}, values[i]});
    const double sum = i < 3 ? 1 + 2 + 4 : 11 + 12 + 15;
    squares += std::pow(values[i] - (sum - values[i]) / 2, 2);
  }
  const auto surface = fit_surface(points);
  ASSERT_TRUE(surface);
  EXPECT_EQ(surface->degree, 1);
  EXPECT_NEAR(surface->cross_validation_error, std::sqrt(squares / 6), 1e-9);
}

TEST(FitSurface, PointsThatTellNothingGiveNoSurface) {
  EXPECT_FALSE(fit_surface({}));
  EXPECT_FALSE(fit_surface(curve({1}, [](double x) { return x; })));
  EXPECT_FALSE(fit_surface(curve({1, 2}, [](double x) { return x; })));
  EXPECT_TRUE(fit_surface(curve({1, 2, 3}, [](double x) { return x; })));
  EXPECT_FALSE(fit_surface(std::vector<SurfacePoint>{{{1}, 2}, {{1}, 3}, {{1}, 4}}));
  std::vector<SurfacePoint> together;
  for (const double x : {1, 2, 3, 4, 5, 6}) {
    together.push_back({{x, 10 * x}, x});
  }
  EXPECT_FALSE(fit_surface(together));
  EXPECT_THROW((void)fit_surface(std::vector<SurfacePoint>{{{1}, 2}, {{1, 2}, 3}}), InternalError);
}

}  // namespace
}  // namespace jforge
