#include "results/analysis/roofline.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "data/tasks/score_interval.h"
#include "runtime/error.h"

namespace jforge {

namespace {

// Tried between the smallest and the largest number of rows.
constexpr int kCandidates = 600;
// Relative error of timers; keeps a perfect fit from winning.
constexpr double kNoiseFloor = 1e-4;

struct Line {
  double flat = 0;
  double slope = 0;
  double squares = 0;  // Σ ((fitted − measured) / measured)²
};

double sum_of_squares(std::span<const LatencyPoint> points, double knee, const Line& line) {
  double squares = 0;
  for (const LatencyPoint& point : points) {
    const double error =
        (line.flat + line.slope * std::max(0.0, point.rows - knee)) / point.seconds - 1;
    squares += error * error;
  }
  return squares;
}

// Weighted least squares of flat + slope · max(0, M − knee), weights 1 / seconds².
Line fit_line(std::span<const LatencyPoint> points, double knee) {
  double w = 0;
  double wx = 0;
  double wxx = 0;
  double wy = 0;
  double wxy = 0;
  for (const LatencyPoint& point : points) {
    const double weight = 1 / (point.seconds * point.seconds);
    const double x = std::max(0.0, point.rows - knee);
    w += weight;
    wx += weight * x;
    wxx += weight * x * x;
    wy += weight * point.seconds;
    wxy += weight * x * point.seconds;
  }
  const double determinant = w * wxx - wx * wx;
  Line line;
  if (determinant > 1e-12 * w * wxx) {
    line.slope = (w * wxy - wx * wy) / determinant;
  }
  // More rows never cost less; a negative slope is noise.
  line.slope = std::max(0.0, line.slope);
  line.flat = (wy - line.slope * wx) / w;
  line.squares = sum_of_squares(points, knee, line);
  return line;
}

// n ln(SSE / n) + p ln n
double information_criterion(double squares, std::size_t count, int parameters) {
  const double n = static_cast<double>(count);
  return n * std::log(squares / n + kNoiseFloor * kNoiseFloor) + parameters * std::log(n);
}

struct Candidate {
  double knee = 0;
  Line line;
};

std::vector<Candidate> all_knees(std::span<const LatencyPoint> points) {
  std::vector<double> knees;
  const double low = std::log(points.front().rows);
  const double high = std::log(points.back().rows);
  for (int i = 1; i < kCandidates; ++i) {
    knees.push_back(std::exp(low + (high - low) * i / kCandidates));
  }
  for (const LatencyPoint& point : points) {
    if (point.rows > points.front().rows && point.rows < points.back().rows) {
      knees.push_back(point.rows);
    }
  }
  std::ranges::sort(knees);
  std::vector<Candidate> candidates;
  for (const double knee : knees) {
    candidates.push_back({knee, fit_line(points, knee)});
  }
  return candidates;
}

std::vector<LatencyPoint> checked_and_sorted(std::span<const LatencyPoint> points) {
  std::vector<LatencyPoint> sorted(points.begin(), points.end());
  for (const LatencyPoint& point : sorted) {
    if (!(point.rows > 0 && std::isfinite(point.rows) && point.seconds > 0 &&
          std::isfinite(point.seconds))) {
      throw DataError("a roofline needs rows and seconds that are positive, finite numbers");
    }
  }
  std::ranges::sort(sorted, {}, &LatencyPoint::rows);
  if (sorted.empty() || sorted.front().rows == sorted.back().rows) {
    throw DataError("a roofline needs latencies for at least 2 different numbers of rows");
  }
  return sorted;
}

}  // namespace

double RooflineFit::seconds(double rows) const {
  return flat_seconds + seconds_per_row * std::max(0.0, rows - knee.value_or(0));
}

RooflineFit fit_roofline(std::span<const LatencyPoint> points) {
  const std::vector<LatencyPoint> sorted = checked_and_sorted(points);
  const std::size_t count = sorted.size();
  // A knee at the last point means flat, at 0 linear.
  const Line flat = fit_line(sorted, sorted.back().rows);
  const Line linear = fit_line(sorted, 0);
  RooflineFit fit;
  Line chosen = flat;
  double criterion = information_criterion(flat.squares, count, 1);
  if (const double other = information_criterion(linear.squares, count, 2); other < criterion) {
    fit.shape = RooflineShape::linear;
    chosen = linear;
    criterion = other;
  }
  if (count >= 4) {
    const std::vector<Candidate> candidates = all_knees(sorted);
    const Candidate& best = *std::ranges::min_element(
        candidates, {}, [](const Candidate& candidate) { return candidate.line.squares; });
    if (information_criterion(best.line.squares, count, 3) < criterion) {
      fit.shape = RooflineShape::knee;
      chosen = best.line;
      fit.knee = fit.knee_low = fit.knee_high = best.knee;
      const double noise = static_cast<double>(count) * kNoiseFloor * kNoiseFloor;
      // 95 % quantile of F(1, count − 3); the noise estimate has count − 3 degrees of freedom.
      const auto freedom = static_cast<std::int64_t>(count) - 3;
      const double quantile = student_quantile(freedom) * student_quantile(freedom);
      const double limit =
          std::max(best.line.squares, noise) * (1 + quantile / static_cast<double>(freedom));
      for (const Candidate& candidate : candidates) {
        if (candidate.line.squares <= limit) {
          fit.knee_low = std::min(*fit.knee_low, candidate.knee);
          fit.knee_high = std::max(*fit.knee_high, candidate.knee);
        }
      }
    }
  }
  fit.flat_seconds = chosen.flat;
  fit.seconds_per_row = chosen.slope;
  fit.relative_error = std::sqrt(chosen.squares / static_cast<double>(count));
  return fit;
}

}  // namespace jforge
