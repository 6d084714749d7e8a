#pragma once

/// A least-squares polynomial over settings; cross-validation chooses its degree.

#include <optional>
#include <span>
#include <vector>

namespace jforge {

struct SurfacePoint {
  std::vector<double> inputs;  ///< [keys], finite.
  double value = 0;            ///< Finite.
};

/// Measured values of a setting; geometric ones enter as log2(value).
struct SurfaceAxis {
  double low = 0;
  double high = 0;
  int distinct = 1;  ///< Number of different values.

  [[nodiscard]] bool geometric() const { return low > 0 && high > 4 * low; }
  /// Maps value or log2(value) from [low, high] to [−1, 1]; 0 if low = high.
  [[nodiscard]] double scaled(double value) const;
};

/// y(x) = Σ_e c_e Π_k s_k^e_k over the scaled settings s_k, with Σ e_k ≤ degree and e_k below the
/// number of distinct values of key k.
struct PolynomialSurface {
  std::vector<SurfaceAxis> axes = {};            ///< [keys]
  std::vector<std::vector<int>> exponents = {};  ///< [terms][keys]
  std::vector<double> coefficients = {};         ///< [terms]
  int degree = 0;
  double cross_validation_error = 0;  ///< Leave-one-out root mean square error.

  /// `inputs`: [keys], within the measured range: it does not extrapolate.
  [[nodiscard]] double evaluate(std::span<const double> inputs) const;
};

/// Returns the polynomial of degree 1 to 6 with the smallest cross-validation error (a higher
/// degree must gain 1 %), or nothing if none beats the mean of the other points. Throws
/// InternalError if numbers of keys differ.
[[nodiscard]] std::optional<PolynomialSurface> fit_surface(std::span<const SurfacePoint> points);

}  // namespace jforge
