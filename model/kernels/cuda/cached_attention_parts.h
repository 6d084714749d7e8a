#pragma once

/// Shared parts of cached attention on lanes and on tensor cores: each split of kSplitKeys keys has
/// its own softmax; a row's splits are merged in order.

#include <cmath>

#include "model/kernels/cuda/cuda_decode_plan_internal.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"

namespace jforge {

/// Undivided softmax of some keys: Σ exp(score − maximum), for any maximum that keeps it finite.
struct SoftmaxPart {
  float maximum;
  float sum;
};

struct Merge {
  float before;
  float added;

  /// Merges `other` into `part`.
  __device__ static Merge of(SoftmaxPart& part, const SoftmaxPart& other) {
    const float maximum = fmaxf(part.maximum, other.maximum);
    const Merge merge{expf(part.maximum - maximum), expf(other.maximum - maximum)};
    part = {maximum, merge.together(part.sum, other.sum)};
    return merge;
  }
  [[nodiscard]] __device__ float together(float sum, float other) const {
    return sum * before + other * added;
  }
};

/// Part p of head h lies at p · heads + h; sums have D elements.
struct RowParts {
  SoftmaxPart* softmax;
  float* sums;
};

/// Block index = tile · key heads + key head.
template <class Elements>
struct CachedAttentionInputs {
  HeadShape shape;
  const DecodeTile* tiles;
  const std::int32_t* visible;
  const std::int32_t* first_part;
  const std::int32_t* pages;
  const float* q;
  Elements k;
  Elements v;
  FloatTarget output;
  RowParts parts;
  float scale;
  std::int64_t most_queries;  ///< Of a tile.
};

/// For a bfloat16 cache with heads of 64 or 128.
void tensor_core_cached_attention(const DeviceQueue& queue, std::int64_t num_tiles, bool whole,
                                  const CachedAttentionInputs<const BFloat16*>& inputs);

}  // namespace jforge
