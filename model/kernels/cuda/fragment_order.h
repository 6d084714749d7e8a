#pragma once

/// The order of a decoding product's operands for tensor cores: as the lanes of a warp hold them
/// (tensor_core.cuh, m16n8k16), so that each lane reads 16 adjacent bytes and a warp 512. The
/// weight's rows, the result's columns, are the instruction's sixteen, the few rows that are
/// multiplied with it its eight.

#include <cstdint>

#include "model/kernels/cuda/block_group.h"

namespace jforge {

/// Steps of K that lie together: two of the instruction's.
inline constexpr std::int64_t kFragmentSteps = 32;
inline constexpr std::int64_t kFragmentColumns = 16;
inline constexpr std::int64_t kFragmentRows = 8;

/// An element of a weight [N, K]: [⌈N / 16⌉][⌈K / 32⌉][2][32 lanes][8].
struct WeightPlace {
  std::int64_t row;
  std::int64_t step;

  /// Of element i; `steps` = ⌈K / 32⌉.
  [[nodiscard]] JFORGE_DEVICE static WeightPlace of(std::int64_t i, std::int64_t steps) {
    const std::int64_t register_of = i / 2 % 4;  // Row + 8 · (1, 3), step + 8 · (2, 3).
    const std::int64_t lane = i / 8 % 32;
    const std::int64_t half = i / 256 % 2;
    const std::int64_t tile = i / 512;
    return {tile / steps * kFragmentColumns + lane / 4 + register_of % 2 * 8,
            tile % steps * kFragmentSteps + half * 16 + register_of / 2 * 8 + lane % 4 * 2 + i % 2};
  }
  [[nodiscard]] JFORGE_DEVICE std::int64_t index(std::int64_t steps) const {
    const std::int64_t lane = row % 8 * 4 + step % 8 / 2;
    const std::int64_t register_of = row % 16 / 8 + step % 16 / 8 * 2;
    const std::int64_t tile = row / kFragmentColumns * steps + step / kFragmentSteps;
    return tile * 512 + step % kFragmentSteps / 16 * 256 + lane * 8 + register_of * 2 + step % 2;
  }
};

/// An element of rows [M, K]: [⌈M / 8⌉][⌈K / 32⌉][32 lanes][8].
struct RowPlace {
  std::int64_t row;
  std::int64_t step;

  [[nodiscard]] JFORGE_DEVICE static RowPlace of(std::int64_t i, std::int64_t steps) {
    const std::int64_t eighth = i / 2 % 4;  // Of the 32 steps.
    const std::int64_t lane = i / 8 % 32;
    const std::int64_t tile = i / 256;
    return {tile / steps * kFragmentRows + lane / 4,
            tile % steps * kFragmentSteps + eighth * 8 + lane % 4 * 2 + i % 2};
  }
};

}  // namespace jforge
