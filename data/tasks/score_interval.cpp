#include "data/tasks/score_interval.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/error.h"

namespace jforge {

namespace {

constexpr double kZ = 1.959963984540054;  // 97.5 % quantile of the normal distribution.

double square(double x) { return x * x; }

/// Applies Newcombe's continuity correction; 0 if a side solves all or none.
double correlation(const PairedCounts& c) {
  const double n = static_cast<double>(c.both + c.only_first + c.only_second + c.neither);
  const auto a = static_cast<double>(c.both);
  const auto b = static_cast<double>(c.only_first);
  const auto d = static_cast<double>(c.only_second);
  const auto e = static_cast<double>(c.neither);
  const double margins = (a + b) * (d + e) * (a + d) * (b + e);
  if (margins <= 0) {
    return 0;
  }
  const double product = a * e - b * d;
  return (product > 0 ? std::max(product - n / 2, 0.0) : product) / std::sqrt(margins);
}

}  // namespace

ScoreInterval wilson_interval(double share, std::int64_t n) {
  expect(n >= 1 && share >= 0 && share <= 1, "wilson_interval() needs n ≥ 1 and a share in [0, 1]");
  const auto count = static_cast<double>(n);
  const double centre = share + kZ * kZ / (2 * count);
  const double half = kZ * std::sqrt(share * (1 - share) / count + square(kZ / (2 * count)));
  const double scale = 1 + kZ * kZ / count;
  // At share 0 or 1 one end is the share itself.
  return {share > 0 ? std::max(0.0, (centre - half) / scale) : 0,
          share < 1 ? std::min(1.0, (centre + half) / scale) : 1};
}

ScoreInterval paired_difference_interval(const PairedCounts& counts) {
  const std::int64_t n = counts.both + counts.only_first + counts.only_second + counts.neither;
  expect(n >= 1, "a difference over no problem");
  const auto share = [&](std::int64_t solved) {
    return static_cast<double>(solved) / static_cast<double>(n);
  };
  const double first = share(counts.both + counts.only_first);
  const double second = share(counts.both + counts.only_second);
  const ScoreInterval of_first = wilson_interval(first, n);
  const ScoreInterval of_second = wilson_interval(second, n);
  const double phi = correlation(counts);
  // Half width from the distances of both sides to opposite ends.
  const auto half = [&](double x, double y) {
    return std::sqrt(std::max(0.0, x * x - 2 * phi * x * y + y * y));
  };
  return {second - first - half(second - of_second.low, of_first.high - first),
          second - first + half(of_second.high - second, first - of_first.low)};
}

double student_quantile(std::int64_t freedom) {
  constexpr std::array<double, 9> kTable{12.706, 4.303, 3.182, 2.776, 2.571,
                                         2.447,  2.365, 2.306, 2.262};
  expect(freedom >= 1, "Student's t has at least one degree of freedom");
  if (freedom <= std::ssize(kTable)) {
    return kTable[static_cast<std::size_t>(freedom - 1)];
  }
  constexpr double z3 = kZ * kZ * kZ;
  constexpr double z5 = z3 * kZ * kZ;
  constexpr double z7 = z5 * kZ * kZ;
  const auto v = static_cast<double>(freedom);
  return kZ + (z3 + kZ) / (4 * v) + (5 * z5 + 16 * z3 + 3 * kZ) / (96 * v * v) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * kZ) / (384 * v * v * v);
}

}  // namespace jforge
