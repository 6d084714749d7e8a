#pragma once

/// Layout of shard files (CHECKPOINT_FORMAT.md).

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoints/checkpoint_manifest.h"

namespace jforge {

/// Dataset names, by ShardVector.
inline constexpr std::array<const char*, 3> kVectorNames = {"parameter", "first_moment",
                                                            "second_moment"};

[[nodiscard]] inline std::int64_t count_elements(std::span<const CheckpointSlice> slices) {
  std::int64_t total = 0;
  for (const CheckpointSlice& slice : slices) {
    total += slice.end - slice.begin;
  }
  return total;
}

/// Tensor number, begin and end of every slice, flattened [slices, 3].
[[nodiscard]] inline std::vector<std::int64_t> slice_rows(std::span<const CheckpointSlice> slices) {
  std::vector<std::int64_t> rows;
  for (const CheckpointSlice& slice : slices) {
    rows.insert(rows.end(), {static_cast<std::int64_t>(slice.tensor), slice.begin, slice.end});
  }
  return rows;
}

}  // namespace jforge
