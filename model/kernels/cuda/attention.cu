/// Attention forward on lanes, packed and decoding. A row's bits depend only on its query and its
/// keys in logical order: tiles begin at multiples of kTileKeys; scores add over D in order, sums
/// over a tile's keys in order.

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/kernels/cuda/attention_tiles.h"
#include "model/kernels/cuda/slow_paths.h"
#include "model/kernels/cuda/tensor_core_attention.cuh"

namespace jforge {

namespace {

/// Block index = query block · key heads + key head.
struct AttentionForward {
  HeadShape shape;
  const QueryTile* blocks;
  const std::int32_t* visible;  ///< Keys that each row sees.
  const std::int32_t* pages;    ///< Null for a packed batch.
  FloatSource q;
  FloatSource k;
  FloatSource v;
  FloatTarget output;
  float* log_sum_exp;  ///< May be null.
  float scale;
  std::int64_t most_queries;

  struct State {
    float maximum;
    float sum;
    float shrink;  ///< This tile's factor for earlier sums.
  };

  [[nodiscard]] static constexpr std::int64_t shared_bytes(const HeadShape& heads,
                                                           std::int64_t queries) {
    const std::int64_t stride = tile_stride(heads);
    return 2 * shared_size<float>(queries * stride) + 2 * shared_size<float>(kTileKeys * stride) +
           shared_size<float>(queries * kScoreStride) + shared_size<State>(queries);
  }
  [[nodiscard]] std::int64_t shared_bytes() const { return shared_bytes(shape, most_queries); }

  __device__ void operator()(BlockGroup& group, std::int64_t index) const {
    const QueryTile block = blocks[index / shape.key_heads];
    const std::int64_t key_head = index % shape.key_heads;
    const std::int64_t queries = block.rows * shape.group();
    const std::int64_t stride = tile_stride(shape);
    float* const query = group.shared<float>(most_queries * stride);
    float* const sums = group.shared<float>(most_queries * stride);
    float* const keys = group.shared<float>(kTileKeys * stride);
    float* const values = group.shared<float>(kTileKeys * stride);
    float* const scores = group.shared<float>(most_queries * kScoreStride);
    State* const states = group.shared<State>(most_queries);
    const auto place = [&](std::int64_t i) {
      return query_offset(shape, block.row_begin, key_head, i);
    };

    load_tile(group, q, queries, shape.dim, stride, scale, query, place);
    group.each([&](std::int64_t lane) {
      for (std::int64_t i = lane; i < queries; i += group.lanes()) {
        states[i] = {-INFINITY, 0.0F, 1.0F};
      }
      for (std::int64_t at = lane; at < queries * stride; at += group.lanes()) {
        sums[at] = 0.0F;
      }
    });
    for (std::int64_t begin = 0; begin < block.keys; begin += kTileKeys) {
      const std::int64_t size = block.keys - begin < kTileKeys ? block.keys - begin : kTileKeys;
      const auto key_place = [&](std::int64_t j) {
        return paged_row(pages, block, key_row(block, begin + j)) * shape.key_stride() +
               key_head * shape.dim;
      };
      load_tile(group, k, size, shape.dim, stride, 1.0F, keys, key_place);
      load_tile(group, v, size, shape.dim, stride, 1.0F, values, key_place);
      // Keys of the tile that query i sees; hidden keys are never multiplied in.
      const auto seen = [&](std::int64_t i) {
        const std::int64_t left =
            std::int64_t{visible[block.row_begin + i / shape.group()]} - begin;
        return left < 0 ? 0 : (left < size ? left : size);
      };
      group.each([&](std::int64_t lane) {
        for (std::int64_t at = lane; at < queries * kTileKeys; at += group.lanes()) {
          const std::int64_t i = at / kTileKeys;
          const std::int64_t j = at % kTileKeys;
          if (j < seen(i)) {
            scores[i * kScoreStride + j] =
                dot_ascending(query + i * stride, keys + j * stride, shape.dim);
          }
        }
      });
      group.each([&](std::int64_t lane) {
        for (std::int64_t i = lane; i < queries; i += group.lanes()) {
          soften(scores + i * kScoreStride, seen(i), states[i]);
        }
      });
      group.each([&](std::int64_t lane) {
        for (std::int64_t at = lane; at < queries * shape.dim; at += group.lanes()) {
          const std::int64_t i = at / shape.dim;
          const std::int64_t d = at % shape.dim;
          float sum = sums[i * stride + d] * states[i].shrink;
          for (std::int64_t j = 0; j < seen(i); ++j) {
            sum = fmaf(scores[i * kScoreStride + j], values[j * stride + d], sum);
          }
          sums[i * stride + d] = sum;
        }
      });
    }
    group.each([&](std::int64_t lane) {
      for (std::int64_t at = lane; at < queries * shape.dim; at += group.lanes()) {
        const std::int64_t i = at / shape.dim;
        const std::int64_t d = at % shape.dim;
        output.set(place(i) + d, sums[i * stride + d] / states[i].sum);
      }
      for (std::int64_t i = lane; log_sum_exp != nullptr && i < queries; i += group.lanes()) {
        log_sum_exp[query_index(shape, block.row_begin, key_head, i)] =
            states[i].maximum + logf(states[i].sum);
      }
    });
  }

  /// Turns the first `count` scores into exp(score − new maximum).
  __device__ static void soften(float* scores, std::int64_t count, State& state) {
    float maximum = state.maximum;
    for (std::int64_t j = 0; j < count; ++j) {
      maximum = fmaxf(maximum, scores[j]);
    }
    // Avoids NaN from −∞ − −∞ before the first key.
    state.shrink = count == 0 ? 1.0F : expf(state.maximum - maximum);
    state.maximum = maximum;
    float sum = state.sum * state.shrink;
    for (std::int64_t j = 0; j < count; ++j) {
      scores[j] = expf(scores[j] - maximum);
      sum += scores[j];
    }
    state.sum = sum;
  }
};
static_assert(AttentionForward::shared_bytes(kLargestHeads, kMostQueries) <= kMostSharedBytes);

}  // namespace

HeadShape check_heads(const ConstTensorView& q, std::int64_t key_heads) {
  expect(q.shape().rank() == 3, "attention: q must be [T, H, D]");
  const HeadShape shape{q.dim(1), key_heads, q.dim(2)};
  expect(key_heads > 0 && shape.heads % key_heads == 0,
         "attention: query heads must be a multiple of key heads");
  expect_heads(DeviceQueue::kDevice, {shape.heads, shape.key_heads, shape.dim});
  return shape;
}

std::int64_t forward_shared_bytes(const HeadShape& heads, std::int64_t queries) {
  return AttentionForward::shared_bytes(heads, queries);
}

void CudaKernelSet::lane_attention(const HeadShape& shape, const CudaPackedPlan::Queries& queries,
                                   const std::int32_t* pages, const FloatSource& q,
                                   const FloatSource& k, const FloatSource& v,
                                   const FloatTarget& output, float* log_sum_exp) {
  const AttentionForward body{shape,
                              queries.tiles,
                              queries.visible,
                              pages,
                              q,
                              k,
                              v,
                              output,
                              log_sum_exp,
                              1.0F / std::sqrt(static_cast<float>(shape.dim)),
                              queries.most_rows * shape.group()};
  queue_.launch(queries.num_tiles * shape.key_heads, kAttentionLanes, body, "attention");
}

void CudaKernelSet::packed_attention(const PackedPlan& plan, ConstTensorView q, ConstTensorView k,
                                     ConstTensorView v, TensorView output, TensorView log_sum_exp) {
  check_packed_attention(plan, q, k, v, output, log_sum_exp);
  if (on_tensor_cores(q)) {
    tensor_core_attention(queue_, tensor_core_inputs(plan, q, k, v), tensor_core_rows(output),
                          floats(log_sum_exp));
    return;
  }
  if (q.dtype() == DType::bfloat16 && !on_tensor_cores(q.dim(2))) {
    warn_of_lanes(q.dim(2));
  }
  lane_attention(check_heads(q, k.dim(1)), on_device(plan).queries(), nullptr, floating(q),
                 floating(k), floating(v), floating(output), floats(log_sum_exp));
}

void CudaKernelSet::warn_of_lanes(std::int64_t head_size) {
  if (!std::exchange(warned_of_lanes_, true)) {
    warn_of_lane_attention(head_size);
  }
}

}  // namespace jforge
