#pragma once

/// What cached attention's two kernels, of lanes and of tensor cores, have in common: keys are
/// taken in splits of kSplitKeys, a split is a softmax of its own, and the splits of a row are
/// added up in order, by the block that has them all or by another kernel.

#include <cmath>

#include "model/kernels/cuda/cuda_decode_plan_internal.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"

namespace jforge {

/// Softmax of some keys before its division: Σ exp(score − maximum), and the values' sum so
/// weighted beside it. Any maximum does that keeps the sum finite.
struct SoftmaxPart {
  float maximum;
  float sum;
};

/// What the two parts' sums are multiplied with where they become one.
struct Merge {
  float before;
  float added;

  /// `part` becomes that of both; the sums are the caller's affair.
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

/// Parts of rows that several blocks share: of part p and head h the softmax at p · heads + h, and
/// the values' sums [D] there.
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

/// Over a cache of bfloat16 with heads of 64 or 128.
void tensor_core_cached_attention(const DeviceQueue& queue, std::int64_t num_tiles, bool whole,
                                  const CachedAttentionInputs<const BFloat16*>& inputs);

}  // namespace jforge
