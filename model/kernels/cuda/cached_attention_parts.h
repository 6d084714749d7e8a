#pragma once

/// Shared parts of cached attention on lanes and on tensor cores: each split of kSplitKeys keys has
/// its own softmax; a row's splits are merged in order, by the block that has them all or by
/// another kernel.

#include <cmath>

#include "model/kernels/cuda/cuda_decode_plan_internal.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"

namespace jforge {

/// Undivided softmax of some keys: Σ exp(score − maximum), beside the equally weighted value sums.
/// Any maximum that keeps the sum finite is valid.
struct SoftmaxPart {
  float maximum;
  float sum;
};

/// Factors that merge two parts' sums.
struct Merge {
  float before;
  float added;

  /// Merges `other` into `part`; the caller merges the value sums.
  JFORGE_DEVICE static Merge of(SoftmaxPart& part, const SoftmaxPart& other) {
    const float maximum = fmaxf(part.maximum, other.maximum);
    const Merge merge{expf(part.maximum - maximum), expf(other.maximum - maximum)};
    part = {maximum, merge.together(part.sum, other.sum)};
    return merge;
  }
  [[nodiscard]] JFORGE_DEVICE float together(float sum, float other) const {
    return sum * before + other * added;
  }
};

/// Parts of rows shared by several blocks: for part p and head h, the softmax at p · heads + h and
/// the value sums [D] there.
struct RowParts {
  SoftmaxPart* softmax;
  float* sums;
};

/// One launch of cached attention; block index = tile · key heads + key head.
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
