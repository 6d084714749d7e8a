#pragma once

#include "model/kernels/cuda/tensor_core_tiles.cuh"

namespace jforge {

inline constexpr float kLog2E = 1.44269504F;
/// A row's reference follows its maximum if that grows by more than this (log2): rescaling is rare.
inline constexpr float kSoftmaxSlack = 8.0F;

[[nodiscard]] __device__ __forceinline__ float row_largest(float value) {
  value = fmaxf(value, __shfl_xor_sync(kEveryLane, value, 1));
  return fmaxf(value, __shfl_xor_sync(kEveryLane, value, 2));
}
[[nodiscard]] __device__ __forceinline__ float row_sum(float value) {
  value += __shfl_xor_sync(kEveryLane, value, 1);
  return value + __shfl_xor_sync(kEveryLane, value, 2);
}

/// Row 2 m + half of a lane is row 16 m + 8 half + lane / 4 of the warp.
template <int kRowBlocks>
struct RunningSoftmax {
  static constexpr int kRows = 2 * kRowBlocks;
  float reference[kRows];  ///< −∞ before the first visible key.
  float sum[kRows];        ///< Of this lane's columns.

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      reference[row] = -INFINITY;
      sum[row] = 0.0F;
    }
  }

  /// Turns scores into weights exp(scale · (score − reference)) and rescales `sums`.
  template <int kN, int kColumns>
  __device__ __forceinline__ void soften(Accumulator (&scores)[kRowBlocks][kN],
                                         Accumulator (&sums)[kRowBlocks][kColumns],
                                         float log2_scale, float slack) {
    float largest[kRows];
    bool moves = false;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      largest[row] = -INFINITY;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float* const two = scores[row / 2][n].values + row % 2 * 2;
        largest[row] = fmaxf(largest[row], fmaxf(two[0], two[1]));
      }
      largest[row] = row_largest(largest[row]);
      moves |= largest[row] > reference[row] + slack;
    }
    // Unmoved rows are multiplied by 1, so other rows of the warp change no bit.
    if (__any_sync(kEveryLane, moves)) {
      move(largest, sums, log2_scale, slack);
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float offset = reference[row] == -INFINITY ? 0.0F : reference[row] * log2_scale;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        float* const two = scores[row / 2][n].values + row % 2 * 2;
        two[0] = exp2_fast(fmaf(two[0], log2_scale, -offset));
        two[1] = exp2_fast(fmaf(two[1], log2_scale, -offset));
        sum[row] += two[0] + two[1];
      }
    }
  }

 private:
  template <int kColumns>
  __device__ __forceinline__ void move(const float (&largest)[kRows],
                                       Accumulator (&sums)[kRowBlocks][kColumns], float log2_scale,
                                       float slack) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      float shrink = 1.0F;
      if (largest[row] > reference[row] + slack) {
        shrink = exp2_fast((reference[row] - largest[row]) * log2_scale);
        reference[row] = largest[row];
      }
      sum[row] *= shrink;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        float* const two = sums[row / 2][n].values + row % 2 * 2;
        two[0] *= shrink;
        two[1] *= shrink;
      }
    }
  }
};

}  // namespace jforge
