#pragma once

/// Random weights for timing.

#include <algorithm>
#include <random>
#include <vector>

#include "model/transformer/parameter_table.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

inline constexpr std::size_t kDrawnWeights = 1'000'003;

/// Draws only a million numbers, unlike initialise_weights(), which takes minutes for large models.
/// Their number is prime, so that no two rows of a matrix are equal.
inline void repeat_weights(const ParameterTable& table, TensorView flat) {
  std::vector<float> drawn(kDrawnWeights);
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::ranges::generate(drawn, [&] { return normal(generator); });
  // In parallel: one thread takes half a minute for 7 billion numbers.
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  const auto clear = [&](std::int64_t piece) {
    const std::int64_t begin = piece * kPiece;
    std::ranges::fill(flat.span<float>().subspan(
                          static_cast<std::size_t>(begin),
                          static_cast<std::size_t>(std::min(kPiece, table.flat_size() - begin))),
                      0.0F);
  };
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t piece = 0; piece < (table.flat_size() + kPiece - 1) / kPiece; ++piece) {
    clear(piece);
  }
  std::size_t drawn_before = 0;
  for (const ParameterEntry& entry : table.entries()) {
    const std::int64_t elements = entry.shape.elements();
    const auto values = flat.span<float>().subspan(static_cast<std::size_t>(entry.offset),
                                                   static_cast<std::size_t>(elements));
    if (entry.shape.rank() == 1) {
      std::ranges::fill(values, entry.name.ends_with("norm.weight") ? 1.0F : 0.0F);
      continue;
    }
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < elements; ++i) {
      const auto index = static_cast<std::size_t>(i);
      values[index] = drawn[(drawn_before + index) % kDrawnWeights];
    }
    drawn_before = (drawn_before + values.size()) % kDrawnWeights;
  }
}

}  // namespace jforge
