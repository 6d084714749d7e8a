#include <algorithm>
#include <cmath>
#include <complex>

#include "data/tasks/code/python_value.h"

namespace jforge {
namespace {

using Kind = PythonValue::Kind;
using Dimensions = std::vector<std::size_t>;

constexpr std::size_t kMaxDimensions = 32;

struct NumberArray {
  Dimensions shape;
  std::vector<std::complex<double>> values;  // row-major
};

std::optional<std::complex<double>> element(const PythonValue& value) {
  if (value.kind == Kind::complex) {
    return std::complex<double>(value.real, value.imaginary);
  }
  const auto real = python_real(value);
  // Beyond 64 bits numpy keeps Python's own objects, on which closeness is not defined.
  if (!real || (value.kind == Kind::integer && (*real >= 0x1p64 || *real < -0x1p63))) {
    return std::nullopt;
  }
  return std::complex<double>(*real, 0.0);
}

std::optional<NumberArray> number_array(const PythonValue& value, std::size_t depth = 0) {
  NumberArray array;
  const bool nested =
      value.kind == Kind::list || value.kind == Kind::tuple || value.kind == Kind::array;
  if (!nested) {
    const auto number = element(value);
    if (!number) {
      return std::nullopt;
    }
    array.values.push_back(*number);
    return array;
  }
  if (depth == kMaxDimensions) {
    return std::nullopt;
  }
  array.shape.push_back(value.items.size());
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    const auto inner = number_array(value.items[i], depth + 1);
    if (!inner) {
      return std::nullopt;
    }
    if (i == 0) {
      array.shape.insert(array.shape.end(), inner->shape.begin(), inner->shape.end());
    } else if (!std::equal(inner->shape.begin(), inner->shape.end(), array.shape.begin() + 1,
                           array.shape.end())) {
      return std::nullopt;
    }
    array.values.insert(array.values.end(), inner->values.begin(), inner->values.end());
  }
  return array;
}

/// Dimensions of two arrays laid over each other by numpy's rule: aligned at the last dimension, a
/// dimension of 1 repeats.
std::optional<Dimensions> broadcast_shape(const Dimensions& left, const Dimensions& right) {
  Dimensions shape(std::max(left.size(), right.size()));
  for (std::size_t back = 1; back <= shape.size(); ++back) {
    const std::size_t a = back <= left.size() ? left[left.size() - back] : 1;
    const std::size_t b = back <= right.size() ? right[right.size() - back] : 1;
    if (a != b && a != 1 && b != 1) {
      return std::nullopt;
    }
    shape[shape.size() - back] = a == 1 ? b : a;
  }
  return shape;
}

/// The element of `array` at place `flat` of the broadcast `shape`.
std::complex<double> broadcast_element(const NumberArray& array, const Dimensions& shape,
                                       std::size_t flat) {
  std::size_t offset = 0;
  std::size_t stride = 1;
  for (std::size_t back = 1; back <= shape.size(); ++back) {
    const std::size_t index = flat % shape[shape.size() - back];
    flat /= shape[shape.size() - back];
    if (back <= array.shape.size()) {
      const std::size_t size = array.shape[array.shape.size() - back];
      offset += size == 1 ? 0 : index * stride;
      stride *= size;
    }
  }
  return array.values[offset];
}

bool is_nan(std::complex<double> x) { return std::isnan(x.real()) || std::isnan(x.imag()); }
bool is_finite(std::complex<double> x) {
  return std::isfinite(x.real()) && std::isfinite(x.imag());
}

}  // namespace

bool numpy_close(const PythonValue& actual, const PythonValue& desired, double rtol, double atol,
                 bool nan_is_close, ArrayFit fit) {
  const auto left = number_array(actual);
  const auto right = number_array(desired);
  if (!left || !right) {
    return false;
  }
  if (fit == ArrayFit::same_shape_or_scalar && left->shape != right->shape &&
      !left->shape.empty() && !right->shape.empty()) {
    return false;
  }
  const auto shape = broadcast_shape(left->shape, right->shape);
  if (!shape) {
    return false;
  }
  std::size_t count = 1;
  for (const std::size_t size : *shape) {
    count *= size;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto x = broadcast_element(*left, *shape, i);
    const auto y = broadcast_element(*right, *shape, i);
    const bool close = is_finite(x) && is_finite(y) ? std::abs(x - y) <= atol + rtol * std::abs(y)
                       : is_nan(x) && is_nan(y)     ? nan_is_close
                                                    : x == y;
    if (!close) {
      return false;
    }
  }
  return true;
}

}  // namespace jforge
