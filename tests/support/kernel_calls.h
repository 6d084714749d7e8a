#pragma once

/// One-call wrappers of kernels that need plans or leave sums on the device.

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "model/kernels/result_sums.h"
#include "model/transformer/training_transformer.h"
#include "runtime/tensor/buffer.h"

namespace jforge::test {

class TestPlan {
 public:
  TestPlan(KernelSet& kernels, const AttentionHeads& heads, PackedBatch batch)
      : batch_(std::move(batch)), plan_(kernels.make_plan(heads, account_)) {
    plan_->assign(batch_);
  }
  [[nodiscard]] const PackedPlan& operator*() const { return *plan_; }

 private:
  MemoryAccount account_{"test plan"};
  PackedBatch batch_;
  std::unique_ptr<PackedPlan> plan_;
};

inline constexpr AttentionHeads kOneHead{.heads = 1, .key_heads = 1, .size = 2};

/// Rows of token 0 at position 0.
inline PackedBatch batch_of(PackedLayout layout, std::span<const LossItem> items = {}) {
  PackedBatch batch;
  batch.tokens.assign(static_cast<std::size_t>(layout.num_rows), 0);
  batch.positions.assign(static_cast<std::size_t>(layout.num_rows), 0);
  batch.layout = std::move(layout);
  batch.loss_items.assign(items.begin(), items.end());
  return batch;
}

inline PackedLayout causal_layout(std::int64_t rows) {
  PackedLayout layout{.num_rows = rows, .segments = {}};
  if (rows > 0) {
    layout.segments.push_back({0, rows, 0, 0, 0});
  }
  return layout;
}

/// Rows of one sequence, with these tokens or positions.
inline PackedBatch batch_of_rows(std::span<const TokenId> tokens) {
  PackedBatch batch = batch_of(causal_layout(std::ssize(tokens)));
  batch.tokens.assign(tokens.begin(), tokens.end());
  return batch;
}
inline PackedBatch batch_at(std::span<const std::int32_t> positions) {
  PackedBatch batch = batch_of(causal_layout(std::ssize(positions)));
  batch.positions.assign(positions.begin(), positions.end());
  return batch;
}

inline AttentionHeads heads_of(const ConstTensorView& q, const ConstTensorView& k) {
  return {.heads = q.dim(1), .key_heads = k.dim(1), .size = q.dim(2)};
}

/// Full slots, their pages in order or, for a seed other than 0, in random order.
struct FullSlots {
  FullSlots(std::int64_t slots, std::int64_t pages_each, unsigned seed = 0)
      : pages(static_cast<std::size_t>(slots * pages_each)), slot_pages(pages_each) {
    std::iota(pages.begin(), pages.end(), 0);
    if (seed != 0) {
      std::shuffle(pages.begin(), pages.end(), std::mt19937(seed));
    }
  }
  [[nodiscard]] PageTable table() const { return {pages, slot_pages}; }
  /// Returns the shape of a cache's keys or values.
  [[nodiscard]] Shape shape(std::int64_t key_heads, std::int64_t dim) const {
    return {std::ssize(pages), kCachePageRows, key_heads, dim};
  }

  std::vector<std::int32_t> pages;
  std::int64_t slot_pages;
};

inline void embedding(KernelSet& kernels, std::span<const TokenId> tokens, ConstTensorView table,
                      TensorView output) {
  const TestPlan plan(kernels, kOneHead, batch_of_rows(tokens));
  kernels.embedding((*plan).rows(), table, output);
}

inline void embedding_backward(KernelSet& kernels, std::span<const TokenId> tokens,
                               ConstTensorView output_gradient, TensorView table_gradient) {
  const TestPlan plan(kernels, kOneHead, batch_of_rows(tokens));
  kernels.embedding_backward(*plan, output_gradient, table_gradient);
}

inline void rotary(KernelSet& kernels, TensorView x, std::span<const std::int32_t> positions,
                   const RotarySettings& settings) {
  const TestPlan plan(kernels, kOneHead, batch_at(positions));
  kernels.rotary(x, {}, (*plan).rows(), settings);
}

inline void rotary_backward(KernelSet& kernels, TensorView x_gradient,
                            std::span<const std::int32_t> positions,
                            const RotarySettings& settings) {
  const TestPlan plan(kernels, kOneHead, batch_at(positions));
  kernels.rotary_backward(x_gradient, {}, (*plan).rows(), settings);
}

/// A layer's cache with its page table.
struct PagedCache {
  TensorView keys;
  TensorView values;
  PageTable table;
  [[nodiscard]] LayerCache layer() const { return {keys, values}; }
};

class TestDecodePlan {
 public:
  TestDecodePlan(KernelSet& kernels, std::int64_t heads, const PagedCache& cache,
                 const DecodeBatch& batch)
      : plan_(kernels.make_decode_plan(
            {.heads = heads, .key_heads = cache.keys.dim(2), .size = cache.keys.dim(3)},
            cache.keys.dtype(), std::ssize(batch.places), account_)) {
    plan_->assign(batch);
  }
  [[nodiscard]] const DecodePlan& operator*() const { return *plan_; }

 private:
  MemoryAccount account_{"test decoding plan"};
  std::unique_ptr<DecodePlan> plan_;
};

inline void cache_write(KernelSet& kernels, std::span<const CacheRow> rows, ConstTensorView k,
                        ConstTensorView v, const PagedCache& cache) {
  const TestDecodePlan plan(
      kernels, cache.keys.dim(2), cache,
      {.tokens = {}, .places = rows, .kept = {}, .copies = {}, .table = cache.table});
  kernels.cache_write(*plan, k, v, cache.layer());
}

inline void cache_copy(KernelSet& kernels, std::span<const CacheCopy> copies,
                       const PagedCache& cache) {
  const TestDecodePlan plan(
      kernels, cache.keys.dim(2), cache,
      {.tokens = {}, .places = {}, .kept = {}, .copies = copies, .table = cache.table});
  const LayerCache layer = cache.layer();
  kernels.cache_copy(*plan, {&layer, 1});
}

inline void cached_attention(KernelSet& kernels, std::span<const CacheRow> rows, ConstTensorView q,
                             const PagedCache& cache, TensorView output) {
  const TestDecodePlan plan(
      kernels, q.dim(1), cache,
      {.tokens = {}, .places = rows, .kept = {}, .copies = {}, .table = cache.table});
  kernels.cached_attention(*plan, DecodeRows::all, q, cache.layer(), output);
}

/// Keeps only these rows of x [M, C].
inline void keep_rows(KernelSet& kernels, std::span<const std::int32_t> rows, TensorView x) {
  const std::vector<CacheRow> places(static_cast<std::size_t>(x.dim(0)));
  const std::vector<std::int32_t> pages{0};
  MemoryAccount account("test decoding plan");
  const auto plan = kernels.make_decode_plan(kOneHead, DType::float32, x.dim(0), account);
  plan->assign({.tokens = {}, .places = places, .kept = rows, .copies = {}, .table = {pages, 1}});
  kernels.keep_rows(*plan, x);
}

inline void invariant_argmax(KernelSet& kernels, ConstTensorView hidden, const PackedWeight& head,
                             std::span<TokenId> tokens) {
  MemoryAccount account("test tokens");
  const Buffer memory(tokens.size_bytes(), account, kernels.device());
  const TensorView chosen = memory.view(DType::int32, {std::ssize(tokens)});
  kernels.invariant_argmax(hidden, head, chosen);
  read_tokens(kernels, chosen, tokens);
}

inline void packed_attention(KernelSet& kernels, ConstTensorView q, ConstTensorView k,
                             ConstTensorView v, const PackedLayout& layout, TensorView output,
                             TensorView log_sum_exp) {
  const TestPlan plan(kernels, heads_of(q, k), batch_of(layout));
  kernels.packed_attention(*plan, q, k, v, output, log_sum_exp);
}

inline void packed_attention_backward(KernelSet& kernels, ConstTensorView output_gradient,
                                      ConstTensorView q, ConstTensorView k, ConstTensorView v,
                                      ConstTensorView output, ConstTensorView log_sum_exp,
                                      const PackedLayout& layout, TensorView q_gradient,
                                      TensorView k_gradient, TensorView v_gradient) {
  const TestPlan plan(kernels, heads_of(q, k), batch_of(layout));
  kernels.packed_attention_backward(*plan, output_gradient, q, k, v, output, log_sum_exp,
                                    q_gradient, k_gradient, v_gradient);
}

/// Returns the sums that `run(sums)` leaves.
template <class Run>
VocabularyLossSums losses_of(KernelSet& kernels, const Run& run) {
  MemoryAccount account("test sums");
  ResultSums sums(kernels, account);
  sums.reset(2);
  run(sums.part(0, 2));
  const std::span<const double> found = sums.read();
  return {.consistency = found[0], .autoregressive = found[1]};
}

inline VocabularyLossSums vocabulary_loss(KernelSet& kernels, ConstTensorView hidden,
                                          ConstTensorView head, std::span<const LossItem> items,
                                          float consistency_scale, float ar_scale,
                                          TensorView hidden_gradient, TensorView head_gradient,
                                          const LossTeacher& teacher = {},
                                          ArLoss ar_loss = ArLoss::cross_entropy) {
  const TestPlan plan(kernels, kOneHead, batch_of(causal_layout(hidden.dim(0)), items));
  return losses_of(kernels, [&](const TensorView& sums) {
    kernels.vocabulary_loss(*plan, hidden, head,
                            {consistency_scale, ar_scale, sums, teacher, ar_loss}, hidden_gradient,
                            head_gradient);
  });
}

inline double sum_of_squares(KernelSet& kernels, ConstTensorView x) {
  MemoryAccount account("test sums");
  ResultSums sums(kernels, account);
  sums.reset(1);
  kernels.sum_of_squares(x, sums.part(0, 1));
  return sums.read()[0];
}

inline std::uint64_t content_hash(KernelSet& kernels, ConstTensorView x, std::uint64_t seed) {
  MemoryAccount account("test hash");
  ResultHashes hashes(kernels, account);
  hashes.reset(1);
  kernels.content_hash(x, seed, hashes.part(0, 1));
  return static_cast<std::uint64_t>(hashes.read()[0]);
}

/// Continues the last forward(). `kernels` are the transformer's.
inline VocabularyLossSums loss_and_backward(KernelSet& kernels, TrainingTransformer& transformer,
                                            ParameterSource& parameters, float consistency_scale,
                                            float ar_scale, GradientSink& gradients,
                                            const TeacherForward& teacher = {},
                                            ArLoss ar_loss = ArLoss::cross_entropy) {
  return losses_of(kernels, [&](const TensorView& sums) {
    transformer.loss_and_backward(parameters,
                                  {.consistency_scale = consistency_scale,
                                   .ar_scale = ar_scale,
                                   .sums = sums,
                                   .ar_loss = ar_loss},
                                  gradients, teacher);
  });
}

}  // namespace jforge::test
