/// Output projection and both losses in one pass (METHOD.md §4): chunks of rows whose logits fit
/// a bounded scratch.

#include <algorithm>
#include <cmath>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/parallel_internal.h"

namespace jforge {

namespace {

bool has_target(const LossItem& item) { return item.target >= 0; }

}  // namespace

/// Items of one chunk with their rows gathered.
struct CpuKernelSet::LossChunk {
  std::span<const LossItem> items;
  LossRows& placed;
  bool with_students = false;
  float consistency_scale = 0;
  float ar_scale = 0;
  std::int64_t hidden_size = 0;
  std::int64_t vocabulary = 0;
  ConstTensorView hidden;
  ConstTensorView head;
  TensorView hidden_gradient;
  float* head_gradient = nullptr;
  VocabularyLossSums sums;
};

/// Loss terms of every item; logits of rows with gradient become the gradients of the logits, in
/// the type of the head.
void CpuKernelSet::loss_terms(LossChunk& chunk, float* logits) {
  // Not a structured binding: a lambda in a parallel region captures them.
  auto& placed = chunk.placed.placement;
  auto& terms = chunk.placed.terms;
  terms.assign(chunk.items.size(), {});
  const std::int64_t v = chunk.vocabulary;
  const auto count = static_cast<std::int64_t>(chunk.items.size());
  const bool rounds = chunk.head.dtype() == DType::bfloat16;
  const auto finish = [&](float* gradients) {
    if (rounds) {
      vector_.round(gradients, reinterpret_cast<BFloat16*>(gradients), v);
    }
  };
  const auto log_sum = [&](const float* z) {
    const float highest = vector_.maximum(z, v);
    return highest + static_cast<float>(std::log(vector_.exp_sum(z, v, highest)));
  };
  parallel_for(count * v > (1 << 14), count, [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    if (placed.clean[at] < 0) {
      return;
    }
    const LossItem& item = chunk.items[at];
    float* teacher = logits + placed.clean[at] * v;
    const float teacher_sum = log_sum(teacher);
    if (placed.student[at] >= 0) {
      float* student = logits + placed.student[at] * v;
      const double divergence =
          vector_.divergence(student, teacher, v, log_sum(student), teacher_sum,
                             chunk.consistency_scale * item.consistency_weight);
      terms[at].consistency = static_cast<double>(item.consistency_weight) * divergence;
      finish(student);
    }
    if (has_target(item)) {
      const float weight = chunk.ar_scale * item.ar_weight;
      terms[at].autoregressive =
          static_cast<double>(item.ar_weight) *
          (static_cast<double>(teacher_sum) - static_cast<double>(teacher[item.target]));
      vector_.softmax_scaled(teacher, v, teacher_sum, weight);
      teacher[item.target] -= weight;
      finish(teacher);
    }
  });
  for (const VocabularyLossSums& term : terms) {
    chunk.sums.consistency += term.consistency;
    chunk.sums.autoregressive += term.autoregressive;
  }
}

template <class Element>
void CpuKernelSet::loss_chunk(LossChunk& chunk) {
  LossPlacement& placement = chunk.placed.placement;
  placement.place(chunk.items, chunk.with_students);
  const std::int64_t with_gradient = placement.with_gradient;
  const std::vector<std::int64_t>& sources = placement.sources;
  const auto rows = static_cast<std::int64_t>(sources.size());
  const std::int64_t v = chunk.vocabulary;
  const std::int64_t c = chunk.hidden_size;
  if (rows == 0) {
    return;
  }
  const Element* const hidden = chunk.hidden.data<Element>();
  const Element* const head = chunk.head.data<Element>();
  auto* const gathered = reinterpret_cast<Element*>(loss_hidden_.at_least(rows * c));
  float* const logits = loss_logits_.at_least(rows * v);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(hidden + sources[static_cast<std::size_t>(row)] * c, c, gathered + row * c);
  }
  multiply<Element>({.transpose_b = true,
                     .m = rows,
                     .n = v,
                     .k = c,
                     .a = gathered,
                     .a_row = c,
                     .b = head,
                     .c = logits});
  loss_terms(chunk, logits);
  // A row of bfloat16 gradients begins where its logits did.
  const auto* const logit_gradients = reinterpret_cast<const Element*>(logits);
  float* gradient = loss_gradient_.at_least(with_gradient * c);
  multiply<Element>({.m = with_gradient,
                     .n = c,
                     .k = v,
                     .a = logit_gradients,
                     .a_row = v * kPerWord<Element>,
                     .b = head,
                     .c = gradient});
  float* const scratch = widened_.at_least(c);
  for (std::int64_t row = 0; row < with_gradient; ++row) {
    const std::int64_t at = sources[static_cast<std::size_t>(row)] * c;
    float* const sum = floats_of(vector_, chunk.hidden_gradient, at, c, scratch);
    vector_.add(gradient + row * c, sum, c);
    round_floats(vector_, sum, chunk.hidden_gradient, at, c);
  }
  multiply<Element>({.transpose_a = true,
                     .m = v,
                     .n = c,
                     .k = with_gradient,
                     .a = logit_gradients,
                     .a_row = v * kPerWord<Element>,
                     .b = gathered,
                     .c = chunk.head_gradient,
                     .accumulate = true});
}

VocabularyLossSums CpuKernelSet::vocabulary_loss(ConstTensorView hidden, ConstTensorView head,
                                                 std::span<const LossItem> items,
                                                 float consistency_scale, float ar_scale,
                                                 TensorView hidden_gradient,
                                                 TensorView head_gradient) {
  check_vocabulary_loss(hidden, head, items, hidden_gradient, head_gradient);
  const std::int64_t v = head.dim(0);
  LossChunk chunk{.items = {},
                  .placed = loss_rows_,
                  .with_students = consistency_scale != 0.0F,
                  .consistency_scale = consistency_scale,
                  .ar_scale = ar_scale,
                  .hidden_size = hidden.dim(1),
                  .vocabulary = v,
                  .hidden = hidden,
                  .head = head,
                  .hidden_gradient = hidden_gradient,
                  .head_gradient = head_gradient.data<float>(),
                  .sums = {}};
  zero_tensor(hidden_gradient);
  const std::int64_t most_rows = loss_chunk_rows(v, head.dtype());
  std::size_t begin = 0;
  while (begin < items.size()) {
    const std::size_t end = loss_chunk_end(items, begin, chunk.with_students, most_rows);
    chunk.items = items.subspan(begin, end - begin);
    if (head.dtype() == DType::float32) {
      loss_chunk<float>(chunk);
    } else {
      loss_chunk<BFloat16>(chunk);
    }
    begin = end;
  }
  return chunk.sums;
}

}  // namespace jforge
