#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "runtime/tensor/buffer.h"

namespace jforge::test {

using Floats = std::vector<float>;

inline Floats random_floats(std::int64_t count, unsigned seed, float scale = 1.0F) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = normal(generator);
  }
  return values;
}

inline Floats values_of(const ConstTensorView& view) {
  Floats result(static_cast<std::size_t>(view.elements()));
  if (view.dtype() == DType::float32) {
    copy_tensor(view, TensorView(result.data(), view.shape()));
    return result;
  }
  std::vector<BFloat16> shorts(result.size());
  copy_tensor(view, TensorView(shorts.data(), view.shape()));
  std::transform(shorts.begin(), shorts.end(), result.begin(), to_float);
  return result;
}

class DeviceTensor {
 public:
  DeviceTensor(const KernelSet& kernels, MemoryAccount& account, const Floats& values, Shape shape,
               DType type = DType::float32)
      : buffer_(storage_bytes(shape.elements(), type), account, kernels.device()),
        shape_(shape),
        type_(type) {
    expect(static_cast<std::int64_t>(values.size()) == shape.elements(),
           "test tensor has another size");
    if (type == DType::float32) {
      copy_tensor(ConstTensorView(values.data(), shape), view());
    } else {
      std::vector<BFloat16> shorts(values.size());
      std::transform(values.begin(), values.end(), shorts.begin(), to_bfloat16);
      copy_tensor(ConstTensorView(shorts.data(), shape), view());
    }
  }
  [[nodiscard]] TensorView view() const { return buffer_.view(type_, shape_); }
  [[nodiscard]] Floats values() const { return values_of(view()); }

 private:
  Buffer buffer_;
  Shape shape_;
  DType type_;
};

inline ::testing::AssertionResult same_bits(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << "sizes differ";
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

/// max |a − b| / max |b|; huge for NaN and for different sizes.
inline double relative_error(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) {
    return 1e30;
  }
  double worst = 0;
  double scale = 1e-30;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double error = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    worst = std::max(worst, std::isnan(error) ? 1e30 : error);
    scale = std::max(scale, std::abs(static_cast<double>(b[i])));
  }
  return worst / scale;
}

/// Forgives a bfloat16 unit in the last place, which a difference before rounding can cause.
inline double rounded_error(const Floats& a, const Floats& b) {
  constexpr float kUnit = 1.0F / 128;
  Floats nearest = a;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float unit = kUnit * std::max(std::abs(a[i]), std::abs(b[i]));
    if (std::abs(a[i] - b[i]) <= unit) {
      nearest[i] = b[i];
    }
  }
  return relative_error(nearest, b);
}

}  // namespace jforge::test
