#pragma once

/// The knee of latency over parallel tokens: before it more tokens are almost free.

#include <cstdint>
#include <optional>
#include <span>

namespace jforge {

struct LatencyPoint {
  double rows = 0;     ///< Tokens decoded in parallel.
  double seconds = 0;  ///< Duration of the pass, > 0.
};

enum class RooflineShape : std::uint8_t {
  flat,    ///< Latency is constant.
  linear,  ///< Latency grows from the first row on.
  knee,    ///< Flat, then linear.
};

/// t(M) = flat_seconds + seconds_per_row · max(0, M − knee).
struct RooflineFit {
  RooflineShape shape = RooflineShape::flat;
  double flat_seconds = 0;
  double seconds_per_row = 0;      ///< Beyond the knee; 0 if flat.
  std::optional<double> knee;      ///< Shape `knee` only.
  std::optional<double> knee_low;  ///< 95 % profile interval of the knee.
  std::optional<double> knee_high;
  double relative_error = 0;  ///< Root mean square of (fitted − measured) / measured.

  [[nodiscard]] double seconds(double rows) const;
};

/// Fits by least squares of the relative error over all knees between the smallest and the largest
/// number of rows. Returns the simplest shape that the Bayesian information criterion does not
/// reject; a knee needs 4 points. Throws DataError for fewer than 2 distinct numbers of rows, or
/// values that are not positive and finite.
[[nodiscard]] RooflineFit fit_roofline(std::span<const LatencyPoint> points);

}  // namespace jforge
