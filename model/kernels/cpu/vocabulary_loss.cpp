/// Output projection and both losses in one pass (algorithm.md §4): chunks of rows whose logits fit
/// a bounded scratch.

#include <algorithm>
#include <cmath>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/parallel_internal.h"
#include "model/kernels/cpu/sgemm_internal.h"

namespace jforge {

namespace {

/// Floats of logits held at once (64 MiB), and the fewest rows, below which the products lose their
/// speed.
constexpr std::int64_t kLogitFloats = 16 << 20;
constexpr std::int64_t kFewestRows = 64;

bool has_target(const LossItem& item) { return item.target >= 0; }
bool has_student(const LossItem& item) { return item.student_row >= 0; }

}  // namespace

/// Items [0, count) with their rows gathered: students first, then clean rows with a target, then
/// pure teachers, so that rows with gradient are adjacent.
struct CpuKernelSet::LossChunk {
  std::span<const LossItem> items;
  LossRows& placed;
  bool with_students = false;
  float consistency_scale = 0;
  float ar_scale = 0;
  std::int64_t hidden_size = 0;
  std::int64_t vocabulary = 0;
  const float* hidden = nullptr;
  const float* head = nullptr;
  float* hidden_gradient = nullptr;
  float* head_gradient = nullptr;
  VocabularyLossSums sums;

  std::int64_t place() const;
  [[nodiscard]] bool uses_student(const LossItem& item) const {
    return with_students && has_student(item);
  }
  [[nodiscard]] bool uses(const LossItem& item) const {
    return has_target(item) || uses_student(item);
  }
  [[nodiscard]] std::int64_t rows_of(const LossItem& item) const {
    return (uses(item) ? 1 : 0) + (uses_student(item) ? 1 : 0);
  }
};

/// Fills `placed`; returns how many of the gathered rows get gradient (they come first).
std::int64_t CpuKernelSet::LossChunk::place() const {
  auto& [sources, student, clean, terms] = placed;
  sources.clear();
  student.assign(items.size(), -1);
  clean.assign(items.size(), -1);
  terms.assign(items.size(), {});
  const auto take = [&](std::int64_t source) {
    sources.push_back(source);
    return static_cast<std::int64_t>(sources.size()) - 1;
  };
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (uses_student(items[i])) {
      student[i] = take(items[i].student_row);
    }
  }
  const auto take_clean = [&](bool with_target) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (uses(items[i]) && has_target(items[i]) == with_target) {
        clean[i] = take(items[i].clean_row);
      }
    }
  };
  take_clean(true);
  const auto with_gradient = static_cast<std::int64_t>(sources.size());
  take_clean(false);
  return with_gradient;
}

/// Loss terms of every item; logits of rows with gradient become the gradients of the logits.
void CpuKernelSet::loss_terms(LossChunk& chunk, float* logits) {
  auto& placed = chunk.placed;
  const std::int64_t v = chunk.vocabulary;
  const auto count = static_cast<std::int64_t>(chunk.items.size());
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
      placed.terms[at].consistency = static_cast<double>(item.consistency_weight) * divergence;
    }
    if (has_target(item)) {
      const float weight = chunk.ar_scale * item.ar_weight;
      placed.terms[at].autoregressive =
          static_cast<double>(item.ar_weight) *
          (static_cast<double>(teacher_sum) - static_cast<double>(teacher[item.target]));
      vector_.softmax_scaled(teacher, v, teacher_sum, weight);
      teacher[item.target] -= weight;
    }
  });
  for (const VocabularyLossSums& term : placed.terms) {
    chunk.sums.consistency += term.consistency;
    chunk.sums.autoregressive += term.autoregressive;
  }
}

void CpuKernelSet::loss_chunk(LossChunk& chunk) {
  const std::int64_t with_gradient = chunk.place();
  const std::vector<std::int64_t>& sources = chunk.placed.sources;
  const auto rows = static_cast<std::int64_t>(sources.size());
  const std::int64_t v = chunk.vocabulary;
  const std::int64_t c = chunk.hidden_size;
  float* gathered = loss_hidden_.at_least(rows * c);
  float* logits = loss_logits_.at_least(rows * v);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(chunk.hidden + sources[static_cast<std::size_t>(row)] * c, c, gathered + row * c);
  }
  sgemm(false, true, rows, v, c, gathered, chunk.head, false, logits);
  loss_terms(chunk, logits);
  float* gradient = loss_gradient_.at_least(with_gradient * c);
  sgemm(false, false, with_gradient, c, v, logits, chunk.head, false, gradient);
  for (std::int64_t row = 0; row < with_gradient; ++row) {
    vector_.add(gradient + row * c,
                chunk.hidden_gradient + sources[static_cast<std::size_t>(row)] * c, c);
  }
  sgemm(true, false, v, c, with_gradient, logits, gathered, true, chunk.head_gradient);
}

VocabularyLossSums CpuKernelSet::vocabulary_loss(ConstTensorView hidden, ConstTensorView head,
                                                 std::span<const LossItem> items,
                                                 float consistency_scale, float ar_scale,
                                                 TensorView hidden_gradient,
                                                 TensorView head_gradient) {
  expect(hidden.shape().rank() == 2 && head.shape().rank() == 2,
         "vocabulary_loss: hidden and head must be matrices");
  const std::int64_t rows = hidden.dim(0);
  const std::int64_t c = hidden.dim(1);
  const std::int64_t v = head.dim(0);
  expect_shape(head, Shape{v, c}, "vocabulary_loss head");
  expect_shape(hidden_gradient, hidden.shape(), "vocabulary_loss hidden_gradient");
  expect_shape(head_gradient, head.shape(), "vocabulary_loss head_gradient");
  for (const LossItem& item : items) {
    expect(item.clean_row >= 0 && item.clean_row < rows && item.student_row < rows,
           "loss item: row out of range");
    expect(item.target < v, "loss item: target outside the vocabulary");
  }
  LossChunk chunk{.items = {},
                  .placed = loss_rows_,
                  .with_students = consistency_scale != 0.0F,
                  .consistency_scale = consistency_scale,
                  .ar_scale = ar_scale,
                  .hidden_size = c,
                  .vocabulary = v,
                  .hidden = hidden.data<float>(),
                  .head = head.data<float>(),
                  .hidden_gradient = hidden_gradient.data<float>(),
                  .head_gradient = head_gradient.data<float>(),
                  .sums = {}};
  std::fill_n(chunk.hidden_gradient, hidden.elements(), 0.0F);
  const std::int64_t most_rows = std::clamp<std::int64_t>(kLogitFloats / v, kFewestRows, 1024);
  std::size_t begin = 0;
  while (begin < items.size()) {
    std::size_t end = begin;
    std::int64_t taken = 0;
    while (end < items.size() && taken + chunk.rows_of(items[end]) <= most_rows) {
      taken += chunk.rows_of(items[end++]);
    }
    if (taken > 0) {
      chunk.items = items.subspan(begin, end - begin);
      loss_chunk(chunk);
    }
    begin = end;
  }
  return chunk.sums;
}

}  // namespace jforge
