#pragma once

/// Compares the tested KernelSet with the CPU's.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/gpu/device_tensor.h"
#include "tests/support/tested_kernel_set.h"

namespace jforge::test {
/// A few hundred summands in another order; exp to a few units in the last place.
inline constexpr double kTolerance = 5e-6;

/// of weights and activations
inline constexpr DType kElementTypes[] = {DType::float32, DType::bfloat16};

class KernelAgreement : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(account_.live_bytes(), 0U); }

  struct Results {
    std::vector<Floats> tested;
    std::vector<Floats> reference;
    std::vector<DType> types;
  };
  class Tensors {
   public:
    Tensors(KernelSet& set, MemoryAccount& account) : kernels(set), account_(account) {}
    TensorView operator()(const Floats& values, Shape shape, DType type = DType::float32) {
      kept_.push_back(std::make_unique<DeviceTensor>(kernels, account_, values, shape, type));
      return kept_.back()->view();
    }
    TensorView random(Shape shape, unsigned seed, DType type = DType::float32) {
      return (*this)(random_floats(shape.elements(), seed), shape, type);
    }
    /// Filled with a value that no kernel leaves by chance.
    TensorView blank(Shape shape, DType type = DType::float32) {
      return (*this)(Floats(static_cast<std::size_t>(shape.elements()), -77.0F), shape, type);
    }
    MemoryAccount& account() { return account_; }
    KernelSet& kernels;

   private:
    MemoryAccount& account_;
    std::vector<std::unique_ptr<DeviceTensor>> kept_;
  };
  using Work = std::function<std::vector<TensorView>(Tensors&)>;

  Results run(const Work& work) {
    Results results;
    results.tested = run_on(*tested_, work, &results.types);
    results.reference = run_on(*reference_, work);
    return results;
  }
  std::vector<Floats> run_on(KernelSet& kernels, const Work& work,
                             std::vector<DType>* types = nullptr) {
    Tensors tensors(kernels, account_);
    std::vector<Floats> results;
    for (const TensorView& view : work(tensors)) {
      results.push_back(values_of(view));
      if (types != nullptr) {
        types->push_back(view.dtype());
      }
    }
    return results;
  }
  /// `tolerance` applies before a bfloat16 result is rounded.
  void expect_close(const Work& work, double tolerance = kTolerance) {
    const Results results = run(work);
    for (std::size_t i = 0; i < results.reference.size(); ++i) {
      const auto error = results.types[i] == DType::bfloat16 ? rounded_error : relative_error;
      EXPECT_LT(error(results.tested[i], results.reference[i]), tolerance) << "tensor " << i;
    }
  }
  void expect_same_bits(const Work& work) {
    const Results results = run(work);
    for (std::size_t i = 0; i < results.reference.size(); ++i) {
      EXPECT_TRUE(same_bits(results.tested[i], results.reference[i])) << "tensor " << i;
    }
  }

  MemoryAccount account_{"test"};
  std::unique_ptr<KernelSet> tested_ = make_tested_kernel_set();
  std::unique_ptr<KernelSet> reference_ = make_cpu_kernel_set();
};

inline std::vector<TokenId> tokens_of(std::int64_t count, TokenId vocabulary, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(generator() % static_cast<unsigned>(vocabulary)));
  }
  return tokens;
}
/// Clean rows 0–49, three noisy runs that see prefixes, and a plain causal sample.
inline PackedLayout layout_with_prefixes() {
  PackedLayout layout;
  layout.num_rows = 170;
  layout.segments = {{0, 50, 0, 0, 0},
                     {50, 61, 0, 7, 50},
                     {61, 97, 0, 33, 61},
                     {97, 120, 0, 50, 97},
                     {120, 170, 120, 120, 120}};
  return layout;
}
inline Floats rounded_floats(std::int64_t count, unsigned seed, float scale = 1.0F) {
  Floats values = random_floats(count, seed, scale);
  for (float& value : values) {
    value = to_float(to_bfloat16(value));
  }
  return values;
}

}  // namespace jforge::test
