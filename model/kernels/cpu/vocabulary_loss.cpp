/// Output projection and both losses in one pass (METHOD.md §4), in chunks of rows.

#include <algorithm>
#include <cmath>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/parallel_internal.h"

namespace jforge {

namespace {

bool has_target(const LossItem& item) { return item.target >= 0; }

}  // namespace

struct CpuKernelSet::LossChunk {
  std::span<const LossItem> items;
  LossRows& placed;
  LossUse use;
  float consistency_scale = 0;
  float ar_scale = 0;
  std::int64_t hidden_size = 0;
  std::int64_t vocabulary = 0;
  ConstTensorView hidden;
  ConstTensorView head;
  LossTeacher teacher;
  TensorView hidden_gradient;
  float* head_gradient = nullptr;  ///< Null: not wanted.
  VocabularyLossSums sums{};
};

/// Replaces logits of rows with gradient by their gradients, in the head's type.
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
    const LossItem& item = chunk.items[at];
    float teacher_sum = 0;
    if (placed.student[at] >= 0) {
      const float* const teacher = logits + placed.teacher[at] * v;
      teacher_sum = log_sum(teacher);
      float* student = logits + placed.student[at] * v;
      const double divergence =
          vector_.divergence(student, teacher, v, log_sum(student), teacher_sum,
                             chunk.consistency_scale * item.consistency_weight);
      terms[at].consistency = static_cast<double>(item.consistency_weight) * divergence;
      finish(student);
    }
    if (!has_target(item)) {
      return;
    }
    float* const clean = logits + placed.clean[at] * v;
    const float weight = chunk.ar_scale * item.ar_weight;
    if (chunk.use.distills_clean) {
      const float* const teacher = logits + placed.teacher[at] * v;
      teacher_sum = placed.student[at] >= 0 ? teacher_sum : log_sum(teacher);
      terms[at].autoregressive =
          static_cast<double>(item.ar_weight) *
          vector_.divergence(clean, teacher, v, log_sum(clean), teacher_sum, weight);
    } else {
      const bool teaches = placed.student[at] >= 0 && placed.teacher[at] == placed.clean[at];
      const float clean_sum = teaches ? teacher_sum : log_sum(clean);
      terms[at].autoregressive =
          static_cast<double>(item.ar_weight) *
          (static_cast<double>(clean_sum) - static_cast<double>(clean[item.target]));
      vector_.softmax_scaled(clean, v, clean_sum, weight);
      clean[item.target] -= weight;
    }
    finish(clean);
  });
  for (const VocabularyLossSums& term : terms) {
    chunk.sums.consistency += term.consistency;
    chunk.sums.autoregressive += term.autoregressive;
  }
}

template <class Element>
void CpuKernelSet::loss_chunk(LossChunk& chunk) {
  LossPlacement& placement = chunk.placed.placement;
  placement.place(chunk.items, chunk.use);
  const std::int64_t with_gradient = placement.with_gradient;
  const std::vector<std::int64_t>& sources = placement.sources;
  const auto rows = static_cast<std::int64_t>(sources.size());
  const std::int64_t v = chunk.vocabulary;
  const std::int64_t c = chunk.hidden_size;
  if (rows == 0) {
    return;
  }
  const std::int64_t own = placement.own;
  const Element* const head = chunk.head.data<Element>();
  auto* const gathered = reinterpret_cast<Element*>(loss_hidden_.at_least(rows * c));
  float* const logits = loss_logits_.at_least(rows * v);
  const auto project = [&](const ConstTensorView& states, const ConstTensorView& matrix,
                           std::int64_t begin, std::int64_t end) {
    const Element* const source = states.data<Element>();
    for (std::int64_t row = begin; row < end; ++row) {
      std::copy_n(source + sources[static_cast<std::size_t>(row)] * c, c, gathered + row * c);
    }
    multiply<Element>({.transpose_b = true,
                       .m = end - begin,
                       .n = v,
                       .k = c,
                       .a = gathered + begin * c,
                       .a_row = c,
                       .b = matrix.data<Element>(),
                       .c = logits + begin * v});
  };
  project(chunk.hidden, chunk.head, 0, own);
  if (rows > own) {
    project(chunk.teacher.hidden, chunk.teacher.head, own, rows);
  }
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
  if (chunk.head_gradient == nullptr) {
    return;
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

void CpuKernelSet::vocabulary_loss(const PackedPlan& plan, ConstTensorView hidden,
                                   ConstTensorView head, const LossTerms& terms,
                                   TensorView hidden_gradient, TensorView head_gradient) {
  check_vocabulary_loss(plan, hidden, head, terms, hidden_gradient, head_gradient);
  const std::span<const LossItem> items = plan.batch().loss_items;
  const std::int64_t v = head.dim(0);
  LossChunk chunk{.items = {},
                  .placed = loss_rows_,
                  .use = loss_use(terms),
                  .consistency_scale = terms.consistency_scale,
                  .ar_scale = terms.ar_scale,
                  .hidden_size = hidden.dim(1),
                  .vocabulary = v,
                  .hidden = hidden,
                  .head = head,
                  .teacher = terms.teacher,
                  .hidden_gradient = hidden_gradient,
                  .head_gradient = head_gradient.empty() ? nullptr : head_gradient.data<float>()};
  zero_tensor(hidden_gradient);
  const std::int64_t most_rows = loss_chunk_rows(v);
  std::size_t begin = 0;
  while (begin < items.size()) {
    const std::size_t end = loss_chunk_end(items, begin, chunk.use, most_rows);
    chunk.items = items.subspan(begin, end - begin);
    if (head.dtype() == DType::float32) {
      loss_chunk<float>(chunk);
    } else {
      loss_chunk<BFloat16>(chunk);
    }
    begin = end;
  }
  auto* const sums = terms.sums.data<double>();
  sums[0] += chunk.sums.consistency;
  sums[1] += chunk.sums.autoregressive;
}

}  // namespace jforge
