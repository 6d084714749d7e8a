#include "results/analysis/polynomial_surface.h"

#include <Eigen/QR>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "runtime/error.h"

namespace jforge {

namespace {

// Returns all terms up to total degree `degree` that the distinct values determine.
std::vector<std::vector<int>> terms_up_to(int degree, const std::vector<SurfaceAxis>& axes) {
  std::vector<std::vector<int>> terms(1, std::vector<int>(axes.size(), 0));
  for (std::size_t key = 0; key < axes.size(); ++key) {
    for (std::size_t i = 0, count = terms.size(); i < count; ++i) {
      const int left = degree - std::accumulate(terms[i].begin(), terms[i].end(), 0);
      for (int exponent = 1; exponent <= std::min(left, axes[key].distinct - 1); ++exponent) {
        terms.push_back(terms[i]);
        terms.back()[key] = exponent;
      }
    }
  }
  return terms;
}

Eigen::RowVectorXd terms_at(const PolynomialSurface& surface, std::span<const double> inputs) {
  expect(inputs.size() == surface.axes.size(), "a surface was given another number of settings");
  Eigen::RowVectorXd terms(surface.exponents.size());
  std::ranges::transform(surface.exponents, terms.begin(), [&](const std::vector<int>& exponents) {
    double product = 1;
    for (std::size_t key = 0; key < inputs.size(); ++key) {
      product *= std::pow(surface.axes[key].scaled(inputs[key]), exponents[key]);
    }
    return product;
  });
  return terms;
}

// Fits `surface.degree`; returns false if the points, or all but one, do not determine the terms.
bool solve(PolynomialSurface& surface, std::span<const SurfacePoint> points) {
  surface.exponents = terms_up_to(surface.degree, surface.axes);
  Eigen::MatrixXd terms(points.size(), surface.exponents.size());
  Eigen::VectorXd values(points.size());
  if (terms.cols() >= terms.rows()) {
    return false;
  }
  for (Eigen::Index row = 0; const SurfacePoint& point : points) {
    terms.row(row) = terms_at(surface, point.inputs);
    values[row++] = point.value;
  }
  Eigen::ColPivHouseholderQR<Eigen::MatrixXd> qr(terms);
  qr.setThreshold(1e-8);
  Eigen::MatrixXd basis = Eigen::MatrixXd::Identity(terms.rows(), terms.cols());
  basis.applyOnTheLeft(qr.householderQ());
  const Eigen::ArrayXd freedom = 1 - basis.rowwise().squaredNorm().array();  // 1 − leverage
  if (qr.rank() < terms.cols() || freedom.minCoeff() < 1e-9) {
    return false;
  }
  const Eigen::VectorXd solution = qr.solve(values);
  surface.coefficients.assign(solution.begin(), solution.end());
  const Eigen::ArrayXd errors = (values - terms * solution).array() / freedom;
  // Exact fits differ only by rounding errors.
  const double rounding = 1e-9 * values.cwiseAbs().maxCoeff();
  surface.cross_validation_error = std::max(std::sqrt(errors.square().mean()), rounding);
  return true;
}

}  // namespace

double SurfaceAxis::scaled(double value) const {
  const double share =
      geometric() ? std::log2(value / low) / std::log2(high / low) : (value - low) / (high - low);
  return low == high ? 0 : 2 * share - 1;
}

double PolynomialSurface::evaluate(std::span<const double> inputs) const {
  return terms_at(*this, inputs) *
         Eigen::VectorXd::Map(coefficients.data(), std::ssize(coefficients));
}

std::optional<PolynomialSurface> fit_surface(std::span<const SurfacePoint> points) {
  PolynomialSurface tried;
  for (std::size_t key = 0; !points.empty() && key < points[0].inputs.size(); ++key) {
    std::set<double> distinct;
    for (const SurfacePoint& point : points) {
      expect(point.inputs.size() == points[0].inputs.size(), "points differ in number of keys");
      distinct.insert(point.inputs[key]);
    }
    const auto count = static_cast<int>(distinct.size());
    tried.axes.push_back({*distinct.begin(), *distinct.rbegin(), count});
  }
  PolynomialSurface best;
  for (; tried.degree <= 6 && solve(tried, points); ++tried.degree) {
    if (tried.degree == 0 || tried.cross_validation_error < 0.99 * best.cross_validation_error) {
      best = tried;
    }
  }
  return best.degree > 0 ? std::optional(best) : std::nullopt;
}

}  // namespace jforge
