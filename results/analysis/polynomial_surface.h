#pragma once

/// A least-squares polynomial over settings (block size, …), its degree chosen by cross-validation.

#include <optional>
#include <span>
#include <vector>

namespace jforge {

struct SurfacePoint {
  std::vector<double> inputs;  ///< [keys], finite.
  double value = 0;            ///< Finite.
};

/// The measured values of one setting. The polynomial takes log2(value) of geometric ones.
struct SurfaceAxis {
  double low = 0;
  double high = 0;
  int distinct = 1;  ///< Number of different values.

  [[nodiscard]] bool geometric() const { return low > 0 && high > 4 * low; }
  /// Returns value or log2(value) moved from [low, high] to [−1, 1]; 0 if low = high.
  [[nodiscard]] double scaled(double value) const;
};

/// y(x) = Σ_e c_e Π_k s_k^e_k over the scaled settings s_k, with Σ e_k ≤ degree and e_k less than
/// the number of distinct values of key k.
struct PolynomialSurface {
  std::vector<SurfaceAxis> axes = {};            ///< [keys]
  std::vector<std::vector<int>> exponents = {};  ///< [terms][keys]
  std::vector<double> coefficients = {};         ///< [terms]
  int degree = 0;
  double cross_validation_error = 0;  ///< Root mean square error for points that are left out.

  /// `inputs`: [keys], within the measured range: the polynomial predicts nothing outside it.
  [[nodiscard]] double evaluate(std::span<const double> inputs) const;
};

/// Returns the polynomial of degree 1 to 6 with the smallest cross-validation error; each degree
/// must improve on lower ones by 1 %. Returns nothing if none predicts a point better than the mean
/// of the others does. Throws InternalError if points differ in their number of keys.
[[nodiscard]] std::optional<PolynomialSurface> fit_surface(std::span<const SurfacePoint> points);

}  // namespace jforge
