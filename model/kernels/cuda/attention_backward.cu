/// Attention backward over a packed layout: probabilities are recomputed per tile from the
/// log-sum-exp (Dao et al. 2022, algorithm 4). One kernel over queries and one over keys give every
/// sum one owner and a fixed order.

#include <algorithm>
#include <cmath>

#include "model/kernels/cuda/attention_tiles.h"
#include "model/kernels/cuda/tensor_core_attention.cuh"

namespace jforge {

namespace {

struct BackwardTensors {
  FloatSource output_gradient;
  FloatSource q;
  FloatSource k;
  FloatSource v;
  const float* log_sum_exp;
  const float* deltas;  ///< Σ_d output · output gradient, [T, H].
};

struct QueryDelta {
  FloatSource output_gradient;
  FloatSource output;
  float* deltas;
  std::int64_t dim;
  __device__ void operator()(std::int64_t query) const {
    float sum = 0;
    for (std::int64_t at = query * dim; at < (query + 1) * dim; ++at) {
      sum = fmaf(output_gradient[at], output[at], sum);
    }
    deltas[query] = sum;
  }
};

/// p = exp(s − lse) and p·(dp − Δ).
struct ScorePair {
  float probability;
  float gradient;
};

[[nodiscard]] __device__ inline ScorePair score_pair(const float* query, const float* key,
                                                     const float* output_gradient,
                                                     const float* value, std::int64_t dim,
                                                     float log_sum_exp, float delta) {
  const float probability = expf(dot_ascending(query, key, dim) - log_sum_exp);
  return {probability, probability * (dot_ascending(output_gradient, value, dim) - delta)};
}

struct QueryGradient {
  HeadShape shape;
  const QueryTile* blocks;
  const std::int32_t* visible;
  BackwardTensors tensors;
  FloatTarget q_gradient;
  float scale;
  std::int64_t most_queries;
  std::int64_t tile_keys;

  [[nodiscard]] static constexpr std::int64_t shared_bytes(const HeadShape& heads,
                                                           std::int64_t queries,
                                                           std::int64_t keys) {
    const std::int64_t stride = tile_stride(heads);
    return 3 * shared_size<float>(queries * stride) + 2 * shared_size<float>(keys * stride) +
           shared_size<float>(queries * keys);
  }
  [[nodiscard]] std::int64_t shared_bytes() const {
    return shared_bytes(shape, most_queries, tile_keys);
  }

  __device__ void operator()(BlockGroup& group, std::int64_t index) const {
    const QueryTile block = blocks[index / shape.key_heads];
    const std::int64_t key_head = index % shape.key_heads;
    const std::int64_t queries = block.rows * shape.group();
    const std::int64_t stride = tile_stride(shape);
    float* const query = group.shared<float>(most_queries * stride);
    float* const output_gradient = group.shared<float>(most_queries * stride);
    float* const sums = group.shared<float>(most_queries * stride);
    float* const keys = group.shared<float>(tile_keys * stride);
    float* const values = group.shared<float>(tile_keys * stride);
    float* const gradients = group.shared<float>(most_queries * tile_keys);
    const auto place = [&](std::int64_t i) {
      return query_offset(shape, block.row_begin, key_head, i);
    };

    load_tile(group, tensors.q, queries, shape.dim, stride, scale, query, place);
    load_tile(group, tensors.output_gradient, queries, shape.dim, stride, 1.0F, output_gradient,
              place);
    group.each([&](std::int64_t lane) {
      for (std::int64_t at = lane; at < queries * stride; at += group.lanes()) {
        sums[at] = 0.0F;
      }
    });
    for (std::int64_t begin = 0; begin < block.keys; begin += tile_keys) {
      const std::int64_t size = block.keys - begin < tile_keys ? block.keys - begin : tile_keys;
      const auto key_place = [&](std::int64_t j) {
        return key_row(block, begin + j) * shape.key_stride() + key_head * shape.dim;
      };
      load_tile(group, tensors.k, size, shape.dim, stride, 1.0F, keys, key_place);
      load_tile(group, tensors.v, size, shape.dim, stride, 1.0F, values, key_place);
      const auto seen = [&](std::int64_t i) {
        const std::int64_t left =
            std::int64_t{visible[block.row_begin + i / shape.group()]} - begin;
        return left < 0 ? 0 : (left < size ? left : size);
      };
      group.each([&](std::int64_t lane) {
        for (std::int64_t at = lane; at < queries * tile_keys; at += group.lanes()) {
          const std::int64_t i = at / tile_keys;
          const std::int64_t j = at % tile_keys;
          if (j < seen(i)) {
            const std::int64_t own = query_index(shape, block.row_begin, key_head, i);
            gradients[at] = score_pair(query + i * stride, keys + j * stride,
                                       output_gradient + i * stride, values + j * stride, shape.dim,
                                       tensors.log_sum_exp[own], tensors.deltas[own])
                                .gradient;
          }
        }
      });
      group.each([&](std::int64_t lane) {
        for (std::int64_t at = lane; at < queries * shape.dim; at += group.lanes()) {
          const std::int64_t i = at / shape.dim;
          const std::int64_t d = at % shape.dim;
          float sum = sums[i * stride + d];
          for (std::int64_t j = 0; j < seen(i); ++j) {
            sum = fmaf(gradients[i * tile_keys + j], keys[j * stride + d], sum);
          }
          sums[i * stride + d] = sum;
        }
      });
    }
    group.each([&](std::int64_t lane) {
      for (std::int64_t at = lane; at < queries * shape.dim; at += group.lanes()) {
        const std::int64_t i = at / shape.dim;
        const std::int64_t d = at % shape.dim;
        q_gradient.set(place(i) + d, scale * sums[i * stride + d]);
      }
    });
  }
};

/// Block index = tile · key heads + key head.
struct KeyGradient {
  HeadShape shape;
  const SeeingRows* ranges;
  const std::int64_t* begins;  ///< [tiles + 1]: where each tile's ranges begin.
  BackwardTensors tensors;
  FloatTarget k_gradient;
  FloatTarget v_gradient;
  float scale;
  std::int64_t rows;  ///< T
  std::int64_t most_queries;
  std::int64_t tile_keys;

  [[nodiscard]] static constexpr std::int64_t shared_bytes(const HeadShape& heads,
                                                           std::int64_t queries,
                                                           std::int64_t keys) {
    const std::int64_t stride = tile_stride(heads);
    return 2 * shared_size<float>(queries * stride) + 4 * shared_size<float>(keys * stride) +
           shared_size<ScorePair>(queries * keys);
  }
  [[nodiscard]] std::int64_t shared_bytes() const {
    return shared_bytes(shape, most_queries, tile_keys);
  }

  __device__ void operator()(BlockGroup& group, std::int64_t index) const {
    const std::int64_t tile = index / shape.key_heads;
    const std::int64_t key_head = index % shape.key_heads;
    const std::int64_t first_key = tile * tile_keys;
    const std::int64_t size = rows - first_key < tile_keys ? rows - first_key : tile_keys;
    const std::int64_t stride = tile_stride(shape);
    float* const query = group.shared<float>(most_queries * stride);
    float* const output_gradient = group.shared<float>(most_queries * stride);
    float* const keys = group.shared<float>(tile_keys * stride);
    float* const values = group.shared<float>(tile_keys * stride);
    float* const key_sums = group.shared<float>(tile_keys * stride);
    float* const value_sums = group.shared<float>(tile_keys * stride);
    ScorePair* const pairs = group.shared<ScorePair>(most_queries * tile_keys);
    const auto key_place = [&](std::int64_t j) {
      return (first_key + j) * shape.key_stride() + key_head * shape.dim;
    };

    load_tile(group, tensors.k, size, shape.dim, stride, 1.0F, keys, key_place);
    load_tile(group, tensors.v, size, shape.dim, stride, 1.0F, values, key_place);
    group.each([&](std::int64_t lane) {
      for (std::int64_t at = lane; at < size * stride; at += group.lanes()) {
        key_sums[at] = 0.0F;
        value_sums[at] = 0.0F;
      }
    });
    const std::int64_t step = most_queries / shape.group();
    for (std::int64_t r = begins[tile]; r < begins[tile + 1]; ++r) {
      const SeeingRows range = ranges[r];
      for (std::int64_t row = range.row_begin; row < range.row_end; row += step) {
        const std::int64_t count = range.row_end - row < step ? range.row_end - row : step;
        visit_rows(group, range, row, count, key_head, first_key, size, query, output_gradient,
                   keys, values, pairs, key_sums, value_sums);
      }
    }
    group.each([&](std::int64_t lane) {
      for (std::int64_t at = lane; at < size * shape.dim; at += group.lanes()) {
        const std::int64_t j = at / shape.dim;
        const std::int64_t d = at % shape.dim;
        k_gradient.set(key_place(j) + d, key_sums[j * stride + d]);
        v_gradient.set(key_place(j) + d, value_sums[j * stride + d]);
      }
    });
  }

  __device__ void visit_rows(BlockGroup& group, const SeeingRows& range, std::int64_t row,
                             std::int64_t count, std::int64_t key_head, std::int64_t first_key,
                             std::int64_t size, float* query, float* output_gradient,
                             const float* keys, const float* values, ScorePair* pairs,
                             float* key_sums, float* value_sums) const {
    const std::int64_t heads = shape.group();
    const std::int64_t queries = count * heads;
    const std::int64_t stride = tile_stride(shape);
    const auto place = [&](std::int64_t i) { return query_offset(shape, row, key_head, i); };
    load_tile(group, tensors.q, queries, shape.dim, stride, scale, query, place);
    load_tile(group, tensors.output_gradient, queries, shape.dim, stride, 1.0F, output_gradient,
              place);
    group.each([&](std::int64_t lane) {
      for (std::int64_t at = lane; at < queries * tile_keys; at += group.lanes()) {
        const std::int64_t i = at / tile_keys;
        const std::int64_t j = at % tile_keys;
        if (j < size && range.sees(row + i / shape.group(), first_key + j)) {
          const std::int64_t own = query_index(shape, row, key_head, i);
          pairs[at] = score_pair(query + i * stride, keys + j * stride,
                                 output_gradient + i * stride, values + j * stride, shape.dim,
                                 tensors.log_sum_exp[own], tensors.deltas[own]);
        }
      }
    });
    group.each([&](std::int64_t lane) {
      for (std::int64_t at = lane; at < size * shape.dim; at += group.lanes()) {
        const std::int64_t j = at / shape.dim;
        const std::int64_t d = at % shape.dim;
        float key_sum = key_sums[j * stride + d];
        float value_sum = value_sums[j * stride + d];
        // By rows, because a division by the group per query would cost more than its sums.
        for (std::int64_t r = 0; r < count; ++r) {
          if (!range.sees(row + r, first_key + j)) {
            continue;
          }
          for (std::int64_t i = r * heads; i < (r + 1) * heads; ++i) {
            const ScorePair pair = pairs[i * tile_keys + j];
            key_sum = fmaf(pair.gradient, query[i * stride + d], key_sum);
            value_sum = fmaf(pair.probability, output_gradient[i * stride + d], value_sum);
          }
        }
        key_sums[j * stride + d] = key_sum;
        value_sums[j * stride + d] = value_sum;
      }
    });
  }
};

/// Whether the largest heads of both tile sizes fit kMostSharedBytes without shrinking.
template <class Gradient>
constexpr bool fits_every_device() {
  for (const std::int64_t size : {std::int64_t{128}, kLargestHeads.dim}) {
    if (Gradient::shared_bytes({kMostQueries, 1, size}, kMostQueries, backward_tile_keys(size)) >
        kMostSharedBytes) {
      return false;
    }
  }
  return true;
}
static_assert(fits_every_device<QueryGradient>() && fits_every_device<KeyGradient>());

}  // namespace

LaneTiles lane_tiles(const AttentionHeads& heads, std::int64_t most_shared) {
  const HeadShape shape{heads.heads, heads.key_heads, heads.size};
  LaneTiles tiles{rows_per_block(heads.group()), backward_tile_keys(heads.size)};
  const auto backward = [&] {
    const std::int64_t queries = tiles.rows * heads.group();
    return std::max(QueryGradient::shared_bytes(shape, queries, tiles.backward_keys),
                    KeyGradient::shared_bytes(shape, queries, tiles.backward_keys));
  };
  while (tiles.backward_keys > kTileKeys / 4 && backward() > most_shared) {
    tiles.backward_keys /= 2;
  }
  while (tiles.rows > 1 &&
         std::max(backward(), forward_shared_bytes(shape, tiles.rows * heads.group())) >
             most_shared) {
    --tiles.rows;
  }
  return tiles;
}

void CudaKernelSet::packed_attention_backward(const PackedPlan& plan,
                                              ConstTensorView output_gradient, ConstTensorView q,
                                              ConstTensorView k, ConstTensorView v,
                                              ConstTensorView output, ConstTensorView log_sum_exp,
                                              TensorView q_gradient, TensorView k_gradient,
                                              TensorView v_gradient) {
  check_packed_attention(plan, q, k, v, output, log_sum_exp);
  expect_shape(output_gradient, q.shape(), "attention output_gradient");
  expect_shape(q_gradient, q.shape(), "attention q_gradient");
  expect_shape(k_gradient, k.shape(), "attention k_gradient");
  expect_shape(v_gradient, k.shape(), "attention v_gradient");
  if (on_tensor_cores(q)) {
    const TensorCoreInputs inputs = tensor_core_inputs(plan, q, k, v);
    tensor_core_attention_backward(
        queue_, inputs,
        {tensor_core_rows(output_gradient), tensor_core_rows(output), floats(log_sum_exp),
         partials_.at_least<std::byte>(tensor_core_scratch(inputs)), tensor_core_rows(q_gradient),
         tensor_core_rows(k_gradient), tensor_core_rows(v_gradient)});
    return;
  }
  lane_attention_backward(plan, output_gradient, q, k, v, output, log_sum_exp, q_gradient,
                          k_gradient, v_gradient);
}

void CudaKernelSet::lane_attention_backward(
    const PackedPlan& plan, const ConstTensorView& output_gradient, const ConstTensorView& q,
    const ConstTensorView& k, const ConstTensorView& v, const ConstTensorView& output,
    const ConstTensorView& log_sum_exp, const TensorView& q_gradient, const TensorView& k_gradient,
    const TensorView& v_gradient) {
  const HeadShape shape = check_heads(q, k.dim(1));
  const std::int64_t rows = plan.num_rows();
  const auto& [tiles, num_tiles, visible, most_rows] = on_device(plan).queries();
  const auto& [ranges, range_begins, tile_keys] = on_device(plan).keys();

  auto* const deltas = partials_.at_least<float>(rows * shape.heads);
  launch_elements(queue_, rows * shape.heads,
                  QueryDelta{floating(output_gradient), floating(output), deltas, shape.dim},
                  "attention_backward deltas");
  const BackwardTensors tensors{floating(output_gradient), floating(q), floating(k), floating(v),
                                floats(log_sum_exp),       deltas};
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape.dim));
  const std::int64_t queries = most_rows * shape.group();
  queue_.launch(num_tiles * shape.key_heads, kAttentionLanes,
                QueryGradient{shape, tiles, visible, tensors, floating(q_gradient), scale, queries,
                              tile_keys},
                "attention_backward queries");
  queue_.launch(divide_up(rows, tile_keys) * shape.key_heads, kAttentionLanes,
                KeyGradient{shape, ranges, range_begins, tensors, floating(k_gradient),
                            floating(v_gradient), scale, rows, queries, tile_keys},
                "attention_backward keys");
}

}  // namespace jforge
