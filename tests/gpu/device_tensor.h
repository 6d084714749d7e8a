#pragma once

/// Tensors of the tested set, and how far they are from the CPU's.

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

/// A float32 tensor on a set's device.
class DeviceTensor {
 public:
  DeviceTensor(const KernelSet& kernels, MemoryAccount& account, const Floats& values, Shape shape)
      : buffer_(values.size() * sizeof(float), account, kernels.device()), shape_(shape) {
    expect(static_cast<std::int64_t>(values.size()) == shape.elements(),
           "test tensor has another size");
    copy_tensor(ConstTensorView(values.data(), shape), view());
  }
  [[nodiscard]] TensorView view() const { return buffer_.floats(shape_); }
  [[nodiscard]] Floats values() const {
    Floats result(static_cast<std::size_t>(shape_.elements()));
    copy_tensor(ConstTensorView(view()), TensorView(result.data(), shape_));
    return result;
  }

 private:
  Buffer buffer_;
  Shape shape_;
};

/// Equal bit for bit.
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

/// Largest |a − b| over the largest |b|; huge for NaN and for different sizes.
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

}  // namespace jforge::test
