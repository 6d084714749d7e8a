#pragma once

/// Random weights for what is only timed.

#include <algorithm>
#include <random>
#include <vector>

#include "model/transformer/parameter_table.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

inline constexpr std::size_t kDrawnWeights = 1'000'003;

/// As initialise_weights(), but the numbers repeat: a million are drawn, which takes milliseconds
/// where those of half a billion parameters take minutes. A prime number of them, so that no two
/// rows of a matrix are equal.
inline void repeat_weights(const ParameterTable& table, TensorView flat) {
  std::vector<float> drawn(kDrawnWeights);
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::ranges::generate(drawn, [&] { return normal(generator); });
  std::ranges::fill(flat.span<float>(), 0.0F);
  std::size_t next = 0;
  for (const ParameterEntry& entry : table.entries()) {
    const auto values = flat.span<float>().subspan(
        static_cast<std::size_t>(entry.offset), static_cast<std::size_t>(entry.shape.elements()));
    if (entry.shape.rank() == 1) {
      std::ranges::fill(values, entry.name.ends_with("norm.weight") ? 1.0F : 0.0F);
      continue;
    }
    for (std::size_t done = 0; done < values.size();) {
      const std::size_t count = std::min(values.size() - done, kDrawnWeights - next);
      std::copy_n(drawn.begin() + static_cast<std::ptrdiff_t>(next), count,
                  values.begin() + static_cast<std::ptrdiff_t>(done));
      done += count;
      next = (next + count) % kDrawnWeights;
    }
  }
}

}  // namespace jforge
