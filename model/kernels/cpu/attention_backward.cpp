/// Attention backward over a packed layout: probabilities are recomputed per tile from the
/// log-sum-exp (Dao et al. 2022, algorithm 4). A unit of work is one key head of a group of
/// segments that share keys, so key and value gradients have one owner.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/parallel_internal.h"

namespace jforge {

namespace {

struct BackwardTensors {
  ConstTensorView output_gradient;
  ConstTensorView q;
  const float* k;
  const float* v;
  ConstTensorView output;
  const float* log_sum_exp;
  TensorView q_gradient;
  float* k_gradient;
  float* v_gradient;
};

struct BackwardScratch {
  BackwardScratch(float* memory, const AttentionShape& shape, std::int64_t count)
      : keys(memory),
        values(keys + kKeyTile * shape.padded_dim()),
        key_rows(values + kKeyTile * shape.padded_dim()),
        queries(key_rows + kKeyTile * shape.padded_dim()),
        gradients(queries + count * shape.padded_dim()),
        query_gradients(gradients + count * shape.padded_dim()),
        scores(query_gradients + count * shape.padded_dim()),
        score_gradients(scores + count * kKeyTile),
        deltas(score_gradients + count * kKeyTile) {}
  static std::int64_t floats(const AttentionShape& shape, std::int64_t count) {
    return 3 * kKeyTile * shape.padded_dim() + 3 * count * shape.padded_dim() +
           2 * count * kKeyTile + count;
  }
  float* keys;             ///< [4][padded][16]
  float* values;           ///< [4][padded][16]
  float* key_rows;         ///< [64][padded], only if D is not a multiple of 16.
  float* queries;          ///< [queries][padded], scaled by 1/√D.
  float* gradients;        ///< [queries][padded]
  float* query_gradients;  ///< [queries][padded]
  float* scores;           ///< [queries][64]
  float* score_gradients;  ///< [queries][64]
  float* deltas;           ///< Σ_d output · output gradient, [queries]
};

class BackwardBlock {
 public:
  BackwardBlock(const VectorKernels& vector, const AttentionShape& shape,
                const BackwardTensors& tensors, std::int64_t key_head, std::int64_t begin,
                std::int64_t end, float* memory)
      : vector_(vector),
        shape_(shape),
        tensors_(tensors),
        key_head_(key_head),
        begin_(begin),
        queries_((end - begin) * shape.group()),
        scratch_(memory, shape, queries_),
        scale_(1.0F / std::sqrt(static_cast<float>(shape.dim))) {
    const std::int64_t padded = shape.padded_dim();
    std::fill(scratch_.queries, scratch_.scores, 0.0F);
    for (std::int64_t i = 0; i < queries_; ++i) {
      const std::int64_t at = query_offset(i);
      copy_floats(vector, tensors.q, at, shape.dim, scratch_.queries + i * padded);
      vector.scale(scratch_.queries + i * padded, scale_, shape.dim);
      float* const gradient = scratch_.gradients + i * padded;
      copy_floats(vector, tensors.output_gradient, at, shape.dim, gradient);
      const float* const output =
          floats_of(vector, tensors.output, at, shape.dim, scratch_.query_gradients);
      scratch_.deltas[i] = vector.dot(gradient, output, shape.dim);
    }
    std::fill_n(scratch_.query_gradients, padded, 0.0F);
  }

  /// If `causal`, row r sees keys up to r.
  void visit(std::int64_t begin, std::int64_t end, bool causal) {
    for (std::int64_t tile = begin; tile < end; tile += kKeyTile) {
      visit_tile(tile, std::min(kKeyTile, end - tile), causal);
    }
  }

  void write_query_gradients() {
    for (std::int64_t i = 0; i < queries_; ++i) {
      float* gradient = scratch_.query_gradients + i * shape_.padded_dim();
      vector_.scale(gradient, scale_, shape_.dim);
      const std::int64_t at = query_offset(i);
      if (tensors_.q_gradient.dtype() == DType::float32) {
        std::copy_n(gradient, shape_.dim, tensors_.q_gradient.data<float>() + at);
      }
      round_floats(vector_, gradient, tensors_.q_gradient, at, shape_.dim);
    }
  }

 private:
  [[nodiscard]] std::int64_t query_offset(std::int64_t i) const {
    return (begin_ + i / shape_.group()) * shape_.query_stride() +
           (key_head_ * shape_.group() + i % shape_.group()) * shape_.dim;
  }

  void score(const float* rows, const float* panels, std::int64_t keys, float* target) const {
    vector_.tile_product({.a = rows,
                          .a_row = shape_.padded_dim(),
                          .b = panels,
                          .b_panel = shape_.padded_dim() * kLanes,
                          .b_depth = kLanes,
                          .c = target,
                          .c_row = kKeyTile,
                          .rows = queries_,
                          .columns = (keys + kLanes - 1) / kLanes * kLanes,
                          .depth = shape_.padded_dim()});
  }

  /// target [keys, D] += weightsᵀ [keys, queries] · rows [queries, D]
  void add_over_queries(const float* weights, const float* rows, std::int64_t keys,
                        float* target) const {
    vector_.tile_product({.a = weights,
                          .a_row = 1,
                          .a_depth = kKeyTile,
                          .b = rows,
                          .b_panel = kLanes,
                          .b_depth = shape_.padded_dim(),
                          .c = target,
                          .c_row = shape_.key_stride(),
                          .rows = keys,
                          .columns = shape_.dim,
                          .depth = queries_,
                          .accumulate = true});
  }

  void visit_tile(std::int64_t tile, std::int64_t size, bool causal) {
    const std::int64_t padded = shape_.padded_dim();
    const std::int64_t stride = shape_.key_stride();
    const std::int64_t at = tile * stride + key_head_ * shape_.dim;
    vector_.transpose_keys(tensors_.k + at, stride, size, shape_.dim, padded, 0, scratch_.keys);
    vector_.transpose_keys(tensors_.v + at, stride, size, shape_.dim, padded, 0, scratch_.values);
    const float* key_rows = tensors_.k + at;
    if (shape_.dim != padded) {
      for (std::int64_t key = 0; key < size; ++key) {
        std::copy_n(key_rows + key * stride, shape_.dim, scratch_.key_rows + key * padded);
        std::fill(scratch_.key_rows + key * padded + shape_.dim,
                  scratch_.key_rows + (key + 1) * padded, 0.0F);
      }
      key_rows = scratch_.key_rows;
    }
    score(scratch_.queries, scratch_.keys, size, scratch_.scores);
    score(scratch_.gradients, scratch_.values, size, scratch_.score_gradients);
    for (std::int64_t i = 0; i < queries_; ++i) {
      const std::int64_t row = begin_ + i / shape_.group();
      const std::int64_t seen = causal ? std::clamp<std::int64_t>(row - tile + 1, 0, size) : size;
      const float log_sum =
          tensors_
              .log_sum_exp[row * shape_.heads + key_head_ * shape_.group() + i % shape_.group()];
      vector_.softmax_backward(scratch_.scores + i * kKeyTile,
                               scratch_.score_gradients + i * kKeyTile, seen, log_sum,
                               scratch_.deltas[i]);
    }
    add_over_queries(scratch_.scores, scratch_.gradients, size, tensors_.v_gradient + at);
    add_over_queries(scratch_.score_gradients, scratch_.queries, size, tensors_.k_gradient + at);
    vector_.tile_product({.a = scratch_.score_gradients,
                          .a_row = kKeyTile,
                          .b = key_rows,
                          .b_panel = kLanes,
                          .b_depth = shape_.dim != padded ? padded : stride,
                          .c = scratch_.query_gradients,
                          .c_row = padded,
                          .rows = queries_,
                          .columns = padded,
                          .depth = size,
                          .accumulate = true});
  }

  const VectorKernels& vector_;
  const AttentionShape& shape_;
  const BackwardTensors& tensors_;
  std::int64_t key_head_;
  std::int64_t begin_;
  std::int64_t queries_;
  BackwardScratch scratch_;
  float scale_;
};

/// Sorts segments by group, which share keys with no other, in row order. `order`: (group,
/// segment); `groups`: parts of that.
void separate_groups(const PackedLayout& layout,
                     std::vector<std::pair<std::size_t, std::size_t>>& order,
                     std::vector<std::pair<std::size_t, std::size_t>>& groups) {
  const std::vector<AttentionSegment>& segments = layout.segments;
  order.clear();
  const auto first_of = [&](std::size_t segment) {
    while (order[segment].first != segment) {
      segment = order[segment].first;
    }
    return segment;
  };
  for (std::size_t i = 0; i < segments.size(); ++i) {
    order.emplace_back(i, i);
    const auto join = [&](std::int64_t begin, std::int64_t end) {
      auto seen = std::ranges::upper_bound(segments, begin, {}, &AttentionSegment::row_end);
      for (; begin < end && seen->row_begin < end && std::cmp_less(seen - segments.begin(), i);
           ++seen) {
        const std::size_t other = first_of(static_cast<std::size_t>(seen - segments.begin()));
        const std::size_t own = first_of(i);
        order[std::max(own, other)].first = std::min(own, other);
      }
    };
    join(segments[i].prefix_begin, segments[i].prefix_end);
    join(segments[i].causal_begin, segments[i].row_begin);
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i].first = first_of(i);
  }
  std::ranges::sort(order);
  groups.clear();
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || order[i].first != order[i - 1].first) {
      groups.emplace_back(i, i);
    }
    groups.back().second = i + 1;
  }
}

}  // namespace

void CpuKernelSet::packed_attention_backward(const PackedPlan& plan,
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
  const AttentionShape shape = check_attention(q, k.dim(1));
  const PackedLayout& layout = plan.batch().layout;
  const std::int64_t rows = layout.num_rows;
  expect_floating(q, "attention q");
  expect_floating(k, "attention k");
  expect_floating(v, "attention v");
  expect_floating(output, "attention output");
  expect_floating(output_gradient, "attention output_gradient");
  expect_floating(q_gradient, "attention q_gradient");
  expect_floating(k_gradient, "attention k_gradient");
  expect_floating(v_gradient, "attention v_gradient");
  const BackwardTensors tensors{.output_gradient = output_gradient,
                                .q = q,
                                .k = all_floats(k, attention_keys_),
                                .v = all_floats(v, attention_values_),
                                .output = output,
                                .log_sum_exp = log_sum_exp.data<float>(),
                                .q_gradient = q_gradient,
                                .k_gradient = zeroed_floats(k_gradient, key_gradients_),
                                .v_gradient = zeroed_floats(v_gradient, value_gradients_)};
  separate_groups(layout, segment_order_, segment_groups_);
  const std::int64_t step = std::max<std::int64_t>(8, kBlockQueries / shape.group());
  const std::int64_t floats = BackwardScratch::floats(shape, step * shape.group());
  reserve_threads(floats);
  const std::int64_t tasks = static_cast<std::int64_t>(segment_groups_.size()) * shape.key_heads;
  const double work = static_cast<double>(rows) * static_cast<double>(rows) *
                      static_cast<double>(shape.query_stride());
  parallel_for_dynamic(work > kParallelWork && tasks > 1, tasks, [&](std::int64_t task) {
    const auto [first, last] = segment_groups_[static_cast<std::size_t>(task / shape.key_heads)];
    float* memory =
        thread_scratch_[static_cast<std::size_t>(omp_get_thread_num())].at_least(floats);
    for (std::size_t i = first; i < last; ++i) {
      const AttentionSegment& segment = layout.segments[segment_order_[i].second];
      for (std::int64_t row = segment.row_begin; row < segment.row_end; row += step) {
        const std::int64_t end = std::min(row + step, segment.row_end);
        BackwardBlock block(vector_, shape, tensors, task % shape.key_heads, row, end, memory);
        block.visit(segment.prefix_begin, segment.prefix_end, false);
        block.visit(segment.causal_begin, end, true);
        block.write_query_gradients();
      }
    }
  });
  round_all(tensors.k_gradient, k_gradient);
  round_all(tensors.v_gradient, v_gradient);
}

}  // namespace jforge
