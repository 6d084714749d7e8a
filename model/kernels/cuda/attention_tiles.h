#pragma once

/// Shared parts of the lane attention kernels.

#include "model/kernels/cuda/cuda_kernel_set_internal.h"

namespace jforge {

inline constexpr std::int64_t kAttentionLanes = 128;

/// Largest heads, in the largest group, that fit kMostSharedBytes.
inline constexpr HeadShape kLargestHeads{kMostQueries, 1, 256};

/// Shared memory of a forward block.
[[nodiscard]] std::int64_t forward_shared_bytes(const HeadShape& heads, std::int64_t queries);

/// Stride of a query's scores; odd, to avoid bank conflicts.
inline constexpr std::int64_t kScoreStride = kTileKeys + 1;

/// Row that holds logical key `key`.
[[nodiscard]] __device__ inline std::int64_t key_row(const QueryTile& block, std::int64_t key) {
  return key < block.first_count ? block.first_key + key
                                 : block.second_key + key - block.first_count;
}

/// Maps a slot's row to the key tensor; identity without a page table.
[[nodiscard]] __device__ inline std::int64_t paged_row(const std::int32_t* pages,
                                                       const QueryTile& block, std::int64_t row) {
  return pages == nullptr ? row
                          : pages[block.first_page + row / kCachePageRows] * kCachePageRows +
                                row % kCachePageRows;
}

/// Query i of a block is head i % group of row i / group.
[[nodiscard]] __device__ inline std::int64_t query_offset(const HeadShape& shape,
                                                          std::int64_t row_begin,
                                                          std::int64_t key_head, std::int64_t i) {
  return (row_begin + i / shape.group()) * shape.query_stride() +
         (key_head * shape.group() + i % shape.group()) * shape.dim;
}

/// Index in a [T, H] tensor.
[[nodiscard]] __device__ inline std::int64_t query_index(const HeadShape& shape,
                                                         std::int64_t row_begin,
                                                         std::int64_t key_head, std::int64_t i) {
  return (row_begin + i / shape.group()) * shape.heads + key_head * shape.group() +
         i % shape.group();
}

/// Σ_d a[d]·b[d] in ascending order by FMA.
[[nodiscard]] __device__ inline float dot_ascending(const float* a, const float* b,
                                                    std::int64_t count) {
  float sum = 0;
  for (std::int64_t d = 0; d < count; ++d) {
    sum = fmaf(a[d], b[d], sum);
  }
  return sum;
}

/// Stride of a tile's rows; odd for even D, to avoid bank conflicts.
[[nodiscard]] JFORGE_DEVICE_AND_HOST constexpr std::int64_t tile_stride(const HeadShape& shape) {
  return shape.dim + 1;
}

/// tile[i][d] = factor · source[row_of(i)][d] for i in [0, count), in one phase.
template <class RowOf>
__device__ void load_tile(BlockGroup& group, const FloatSource& source, std::int64_t count,
                          std::int64_t dim, std::int64_t stride, float factor, float* tile,
                          RowOf row_of) {
  group.each([&](std::int64_t lane) {
    for (std::int64_t at = lane; at < count * dim; at += group.lanes()) {
      const std::int64_t i = at / dim;
      const std::int64_t d = at % dim;
      tile[i * stride + d] = factor * source[row_of(i) + d];
    }
  });
}

}  // namespace jforge
