#include "tests/benchmarks/repeated_weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/tensor/buffer.h"
#include "tests/support/tiny_config.h"

namespace jforge {
namespace {

TEST(RepeatedWeights, AreDrawnOnceAndNoTwoRowsAreEqual) {
  TransformerConfig config = test::tiny_config(true);
  config.vocabulary_size = 500'000;  // 2^25 numbers with rows of 64, a divisor of 2^20
  config.hidden_size = 64;
  config.num_heads = 4;
  const ParameterTable table(config, 1);
  MemoryAccount account("weights");
  const Buffer memory(static_cast<std::size_t>(table.flat_size()) * sizeof(float), account);
  const TensorView flat = memory.floats({table.flat_size()});
  repeat_weights(table, flat);
  for (const ParameterEntry& entry : table.entries()) {
    const auto values = flat.span<float>().subspan(
        static_cast<std::size_t>(entry.offset), static_cast<std::size_t>(entry.shape.elements()));
    if (entry.name.ends_with("norm.weight")) {
      EXPECT_EQ(std::ranges::count(values, 1.0F), std::ssize(values)) << entry.name;
    } else if (entry.name == "model.embed_tokens.weight") {
      double squares = 0;
      for (const float value : values) {
        squares += static_cast<double>(value) * static_cast<double>(value);
      }
      EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size())), 0.02, 1e-4);
      const auto first = values.first(64);
      EXPECT_TRUE(std::ranges::equal(first, values.subspan(kDrawnWeights, 64)));
      for (std::size_t row = 1; row < 500'000; ++row) {
        ASSERT_FALSE(std::ranges::equal(first, values.subspan(64 * row, 64))) << row;
      }
    }
  }
}

}  // namespace
}  // namespace jforge
