/// Output projection and both losses in one pass (METHOD.md §4): chunks of rows whose logits fit
/// a bounded scratch.

#include <cmath>

#include "model/kernels/cuda/cuda_kernel_set_internal.h"

namespace jforge {

namespace {

constexpr std::int64_t kLossLanes = 256;

/// One item of a chunk as its kernel reads it.
struct ItemRows {
  std::int64_t student;  ///< Row of the logits, −1: none.
  std::int64_t teacher;  ///< Row of the logits; read where there is a student.
  std::int64_t clean;    ///< Row of the logits; read where there is a target.
  std::int64_t target;   ///< −1: none.
  float student_weight;  ///< Scaled, for the gradient.
  float target_weight;   ///< Scaled, for the gradient.
};

/// Unweighted terms of an item.
struct ItemTerms {
  double divergence;
  double cross_entropy;
};

struct GatherRows {
  const float* source;
  const std::int64_t* rows;
  float* target;
  std::int64_t columns;
  JFORGE_DEVICE void operator()(std::int64_t i) const {
    target[i] = source[rows[i / columns] * columns + i % columns];
  }
};

/// Adds gathered rows back, in order: a lane owns a column, so that rows that occur twice add up.
struct ScatterAddRows {
  const float* source;
  const std::int64_t* rows;
  std::int64_t count;
  float* target;
  std::int64_t columns;
  JFORGE_DEVICE void operator()(std::int64_t column) const {
    for (std::int64_t i = 0; i < count; ++i) {
      target[rows[i] * columns + column] += source[i * columns + column];
    }
  }
};

/// Terms of one item; its logits become the gradients of the logits.
struct LossTerms {
  const ItemRows* items;
  float* logits;
  ItemTerms* terms;
  std::int64_t vocabulary;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }

  /// log Σ exp(z)
  template <class Group>
  JFORGE_DEVICE float log_sum(Group& group, const float* z) const {
    const float highest = group.largest([&](std::int64_t lane) {
      float largest = -INFINITY;
      for (std::int64_t i = lane; i < vocabulary; i += group.lanes()) {
        largest = fmaxf(largest, z[i]);
      }
      return largest;
    });
    const double total = group.template sum<double>([&](std::int64_t lane) {
      double sum = 0;
      for (std::int64_t i = lane; i < vocabulary; i += group.lanes()) {
        sum += static_cast<double>(expf(z[i] - highest));
      }
      return sum;
    });
    return highest + static_cast<float>(log(total));
  }

  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t index) const {
    const ItemRows item = items[index];
    group.each([&](std::int64_t lane) {
      if (lane == 0) {
        terms[index] = {0.0, 0.0};
      }
    });
    float teacher_sum = 0;
    if (item.student >= 0) {
      const float* const teacher = logits + item.teacher * vocabulary;
      teacher_sum = log_sum(group, teacher);
      student_terms(group, item, teacher, teacher_sum, index);
    }
    if (item.target >= 0) {
      float* const clean = logits + item.clean * vocabulary;
      const bool taught = item.student >= 0 && item.teacher == item.clean;
      const float clean_sum = taught ? teacher_sum : log_sum(group, clean);
      group.each([&](std::int64_t lane) {
        if (lane == 0) {
          terms[index].cross_entropy =
              static_cast<double>(clean_sum) - static_cast<double>(clean[item.target]);
        }
      });
      group.each([&](std::int64_t lane) {
        for (std::int64_t i = lane; i < vocabulary; i += group.lanes()) {
          const float probability = item.target_weight * expf(clean[i] - clean_sum);
          clean[i] = i == item.target ? probability - item.target_weight : probability;
        }
      });
    }
  }

  /// Σ p_t (log p_t − log p_s); the student's logits become weight · (p_s − p_t).
  template <class Group>
  JFORGE_DEVICE void student_terms(Group& group, const ItemRows& item, const float* teacher,
                                   float teacher_sum, std::int64_t index) const {
    float* const student = logits + item.student * vocabulary;
    const float student_sum = log_sum(group, student);
    const double divergence = group.template sum<double>([&](std::int64_t lane) {
      double sum = 0;
      for (std::int64_t i = lane; i < vocabulary; i += group.lanes()) {
        const float log_t = teacher[i] - teacher_sum;
        const float log_s = student[i] - student_sum;
        const float p_t = expf(log_t);
        student[i] = item.student_weight * (expf(log_s) - p_t);
        sum += static_cast<double>(p_t * (log_t - log_s));
      }
      return sum;
    });
    group.each([&](std::int64_t lane) {
      if (lane == 0) {
        terms[index].divergence = divergence;
      }
    });
  }
};

}  // namespace

struct CudaKernelSet::LossCall {
  float consistency_scale;
  float ar_scale;
  std::int64_t hidden_size;
  std::int64_t vocabulary;
  const float* hidden;
  const float* head;
  const float* teacher_hidden;  ///< Null: the student's own.
  const float* teacher_head;
  float* hidden_gradient;
  float* head_gradient;
  VocabularyLossSums sums;

  [[nodiscard]] LossUse use() const {
    return {.students = consistency_scale != 0.0F, .separate_teacher = teacher_hidden != nullptr};
  }
};

void CudaKernelSet::loss_chunk(LossCall& call, std::span<const LossItem> items) {
  placement_.place(items, call.use());
  const auto rows = static_cast<std::int64_t>(placement_.sources.size());
  if (rows == 0) {
    return;
  }
  const std::int64_t c = call.hidden_size;
  const std::int64_t v = call.vocabulary;
  std::vector<ItemRows> placed;
  for (std::size_t i = 0; i < items.size(); ++i) {
    placed.push_back({placement_.student[i], placement_.teacher[i], placement_.clean[i],
                      items[i].target, call.consistency_scale * items[i].consistency_weight,
                      call.ar_scale * items[i].ar_weight});
  }
  const std::int64_t* const sources =
      staged_rows_.upload(std::span<const std::int64_t>(placement_.sources));
  auto* const gathered = loss_hidden_.at_least<float>(rows * c);
  auto* const logits = loss_logits_.at_least<float>(rows * v);
  auto* const terms = partials_.at_least<ItemTerms>(static_cast<std::int64_t>(placed.size()));
  const auto project = [&](const float* states, const float* head, std::int64_t begin,
                           std::int64_t end) {
    float* const part = gathered + begin * c;
    launch_elements(queue_, (end - begin) * c, GatherRows{states, sources + begin, part, c},
                    "loss rows");
    product(false, true, end - begin, v, c, part, head, false, logits + begin * v);
  };
  project(call.hidden, call.head, 0, placement_.own);
  if (rows > placement_.own) {
    project(call.teacher_hidden, call.teacher_head, placement_.own, rows);
  }
  queue_.launch(
      static_cast<std::int64_t>(placed.size()), kLossLanes,
      LossTerms{staged_ranges_.upload(std::span<const ItemRows>(placed)), logits, terms, v},
      "loss terms");
  const std::int64_t with_gradient = placement_.with_gradient;
  auto* const gradient = loss_gradient_.at_least<float>(with_gradient * c);
  product(false, false, with_gradient, c, v, logits, call.head, false, gradient);
  launch_elements(queue_, with_gradient == 0 ? 0 : c,
                  ScatterAddRows{gradient, sources, with_gradient, call.hidden_gradient, c},
                  "loss hidden gradient");
  product(true, false, v, c, with_gradient, logits, gathered, true, call.head_gradient);

  std::vector<ItemTerms> found(placed.size());
  queue_.download(found.data(), terms, found.size() * sizeof(ItemTerms));
  for (std::size_t i = 0; i < items.size(); ++i) {
    call.sums.consistency += static_cast<double>(items[i].consistency_weight) * found[i].divergence;
    call.sums.autoregressive += static_cast<double>(items[i].ar_weight) * found[i].cross_entropy;
  }
}

VocabularyLossSums CudaKernelSet::vocabulary_loss(ConstTensorView hidden, ConstTensorView head,
                                                  std::span<const LossItem> items,
                                                  float consistency_scale, float ar_scale,
                                                  TensorView hidden_gradient,
                                                  TensorView head_gradient,
                                                  const LossTeacher& teacher) {
  check_vocabulary_loss(hidden, head, items, hidden_gradient, head_gradient, teacher);
  LossCall call{consistency_scale,
                ar_scale,
                hidden.dim(1),
                head.dim(0),
                floats(hidden),
                floats(head),
                floats(teacher.hidden),
                floats(teacher.head),
                floats(hidden_gradient),
                floats(head_gradient),
                {}};
  zero_tensor(hidden_gradient);
  const std::int64_t most_rows = loss_chunk_rows(call.vocabulary, DType::float32);
  std::size_t begin = 0;
  while (begin < items.size()) {
    const std::size_t end = loss_chunk_end(items, begin, call.use(), most_rows);
    loss_chunk(call, items.subspan(begin, end - begin));
    begin = end;
  }
  return call.sums;
}

}  // namespace jforge
