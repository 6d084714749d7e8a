#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "model/kernels/cpu/cpu_kernel_set.h"

namespace jforge::test {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

inline Floats random_floats(std::int64_t count, unsigned seed, float scale = 1.0F) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  Floats values(at(count));
  for (float& value : values) {
    value = normal(generator);
  }
  return values;
}

inline TensorView view(Floats& values, Shape shape) {
  expect(static_cast<std::int64_t>(values.size()) == shape.elements(),
         "test tensor has another size");
  return {values.data(), shape};
}
inline ConstTensorView view(const Floats& values, Shape shape) {
  expect(static_cast<std::int64_t>(values.size()) == shape.elements(),
         "test tensor has another size");
  return {values.data(), shape};
}

using BFloat16s = std::vector<BFloat16>;

inline BFloat16s rounded(const Floats& values) {
  BFloat16s result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), to_bfloat16);
  return result;
}
inline Floats widened(const BFloat16s& values) {
  Floats result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), to_float);
  return result;
}
inline TensorView view(BFloat16s& values, Shape shape) {
  expect(static_cast<std::int64_t>(values.size()) == shape.elements(),
         "test tensor has another size");
  return {values.data(), shape};
}
inline ConstTensorView view(const BFloat16s& values, Shape shape) {
  expect(static_cast<std::int64_t>(values.size()) == shape.elements(),
         "test tensor has another size");
  return {values.data(), shape};
}

inline Doubles to_double(const Floats& values) { return {values.begin(), values.end()}; }

/// Compares bits: NaN equals itself, +0 differs from −0.
inline ::testing::AssertionResult same_bits(const float* a, const float* b, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::memcmp(a + i, b + i, sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}
inline ::testing::AssertionResult same_bits(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << "sizes differ";
  }
  return same_bits(a.data(), b.data(), static_cast<std::int64_t>(a.size()));
}

/// max |a − b| / max |b|
inline double relative_error(const Floats& a, const Doubles& b) {
  double worst = 0;
  double scale = 1e-30;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double error = std::abs(static_cast<double>(a[i]) - b[i]);
    worst = std::max(worst, std::isnan(error) ? 1e30 : error);
    scale = std::max(scale, std::abs(b[i]));
  }
  return a.size() == b.size() ? worst / scale : 1e30;
}

/// Central differences in double: relative error about 1e-9.
inline Doubles numerical_gradient(const std::function<double(const Doubles&)>& loss, Doubles x) {
  constexpr double kStep = 1e-5;
  Doubles gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    x[i] = kept + kStep;
    const double above = loss(x);
    x[i] = kept - kStep;
    gradient[i] = (above - loss(x)) / (2 * kStep);
    x[i] = kept;
  }
  return gradient;
}

inline double weighted_sum(const Doubles& values, const Floats& weights) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += values[i] * static_cast<double>(weights[i]);
  }
  return sum;
}

class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~ThreadCount() { omp_set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

/// Skipped if the machine lacks the instruction set.
class KernelTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    if (!instruction_set_available(GetParam())) {
      GTEST_SKIP() << "this processor lacks the instruction set";
    }
    kernels_ = make_cpu_kernel_set(GetParam(), GetParam() == InstructionSet::amx_bf16
                                                   ? BFloat16Sums::groups
                                                   : BFloat16Sums::pairs);
  }
  std::unique_ptr<KernelSet> kernels_;
  MemoryAccount account_{"test"};
};

inline std::string instruction_set_name(const ::testing::TestParamInfo<InstructionSet>& info) {
  return info.param == InstructionSet::avx2          ? "avx2"
         : info.param == InstructionSet::avx512      ? "avx512"
         : info.param == InstructionSet::avx512_bf16 ? "avx512_bf16"
                                                     : "amx_bf16";
}

/// Products of bfloat16 are tested in both orders with every instruction set.
inline constexpr BFloat16Sums kBFloat16Sums[] = {BFloat16Sums::pairs, BFloat16Sums::groups};

/// start + Σ a(i) · b(i), i < k, in the promised order. Elements are float32.
template <class A, class B>
float ordered_sum(BFloat16Sums sums, const A& a, const B& b, std::int64_t k, float start) {
  if (sums == BFloat16Sums::pairs) {
    for (std::int64_t i = 0; i < k; i += 2) {
      if (i + 1 < k) {
        start = std::fma(a(i + 1), b(i + 1), start);
      }
      start = std::fma(a(i), b(i), start);
    }
    return start;
  }
  for (std::int64_t begin = 0; begin < k; begin += kGroupSteps) {
    float parts[2] = {0, 0};  // of even and odd steps
    for (std::int64_t i = begin; i < std::min(begin + kGroupSteps, k); ++i) {
      parts[i % 2] = std::fma(a(i), b(i), parts[i % 2]);
    }
    start += parts[0] + parts[1];
  }
  return start;
}

/// Rounding of fp32 sums of a few hundred terms grows with √n · 6e-8; this leaves a factor of
/// three.
inline constexpr double kTolerance = 3e-6;

}  // namespace jforge::test

#define JFORGE_KERNEL_SUITE(name)                                                         \
  INSTANTIATE_TEST_SUITE_P(                                                               \
      InstructionSets, name,                                                              \
      ::testing::Values(::jforge::InstructionSet::avx2, ::jforge::InstructionSet::avx512, \
                        ::jforge::InstructionSet::avx512_bf16,                            \
                        ::jforge::InstructionSet::amx_bf16),                              \
      ::jforge::test::instruction_set_name)
