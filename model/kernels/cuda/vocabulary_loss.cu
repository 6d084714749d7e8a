/// Output projection and both losses in one pass (METHOD.md §4): chunks of rows whose logits fit
/// a bounded scratch.

#include <cmath>

#include "model/kernels/cuda/cuda_kernel_set_internal.h"

namespace jforge {

namespace {

constexpr std::int64_t kLossLanes = 256;

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
struct ItemLoss {
  const LossItemRows* items;
  float consistency_scale;
  float ar_scale;
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
    const LossItemRows item = items[index];
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
      const float weight = ar_scale * item.ar_weight;
      group.each([&](std::int64_t lane) {
        for (std::int64_t i = lane; i < vocabulary; i += group.lanes()) {
          const float probability = weight * expf(clean[i] - clean_sum);
          clean[i] = i == item.target ? probability - weight : probability;
        }
      });
    }
  }

  /// Σ p_t (log p_t − log p_s); the student's logits become weight · (p_s − p_t).
  template <class Group>
  JFORGE_DEVICE void student_terms(Group& group, const LossItemRows& item, const float* teacher,
                                   float teacher_sum, std::int64_t index) const {
    float* const student = logits + item.student * vocabulary;
    const float student_sum = log_sum(group, student);
    const float weight = consistency_scale * item.consistency_weight;
    const double divergence = group.template sum<double>([&](std::int64_t lane) {
      double sum = 0;
      for (std::int64_t i = lane; i < vocabulary; i += group.lanes()) {
        const float log_t = teacher[i] - teacher_sum;
        const float log_s = student[i] - student_sum;
        const float p_t = expf(log_t);
        student[i] = weight * (expf(log_s) - p_t);
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

/// Adds the weighted terms of a chunk to the two sums, by one block of lanes.
struct AddTerms {
  const LossItemRows* items;
  const ItemTerms* terms;
  std::int64_t count;
  double* sums;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t /*block*/) const {
    const double consistency = group.template sum<double>([&](std::int64_t lane) {
      double sum = 0;
      for (std::int64_t i = lane; i < count; i += group.lanes()) {
        sum += static_cast<double>(items[i].consistency_weight) * terms[i].divergence;
      }
      return sum;
    });
    const double autoregressive = group.template sum<double>([&](std::int64_t lane) {
      double sum = 0;
      for (std::int64_t i = lane; i < count; i += group.lanes()) {
        sum += static_cast<double>(items[i].ar_weight) * terms[i].cross_entropy;
      }
      return sum;
    });
    group.each([&](std::int64_t lane) {
      if (lane == 0) {
        sums[0] += consistency;
        sums[1] += autoregressive;
      }
    });
  }
};

}  // namespace

struct CudaKernelSet::LossCall {
  const LossTerms& terms;
  std::int64_t hidden_size;
  std::int64_t vocabulary;
  const float* hidden;
  const float* head;
  const float* teacher_hidden;  ///< Null: the student's own.
  const float* teacher_head;
  float* hidden_gradient;
  float* head_gradient;
};

void CudaKernelSet::loss_chunk(const LossCall& call, const CudaPackedPlan::LossChunk& chunk) {
  if (chunk.rows == 0) {
    return;
  }
  const auto& [items, num_items, sources, rows, own, with_gradient] = chunk;
  const std::int64_t c = call.hidden_size;
  const std::int64_t v = call.vocabulary;
  auto* const gathered = loss_hidden_.at_least<float>(rows * c);
  auto* const logits = loss_logits_.at_least<float>(rows * v);
  auto* const terms = partials_.at_least<ItemTerms>(num_items);
  const auto project = [&](const float* states, const float* head, std::int64_t begin,
                           std::int64_t end) {
    float* const part = gathered + begin * c;
    launch_elements(queue_, (end - begin) * c, GatherRows{states, chunk.sources + begin, part, c},
                    "loss rows");
    product(false, true, end - begin, v, c, part, head, false, logits + begin * v);
  };
  project(call.hidden, call.head, 0, own);
  if (rows > own) {
    project(call.teacher_hidden, call.teacher_head, own, rows);
  }
  queue_.launch(
      num_items, kLossLanes,
      ItemLoss{items, call.terms.consistency_scale, call.terms.ar_scale, logits, terms, v},
      "loss terms");
  queue_.launch(1, kLossLanes, AddTerms{items, terms, num_items, sums_of(call.terms.sums)},
                "loss sums");
  auto* const gradient = loss_gradient_.at_least<float>(with_gradient * c);
  product(false, false, with_gradient, c, v, logits, call.head, false, gradient);
  launch_elements(queue_, with_gradient == 0 ? 0 : c,
                  ScatterAddRows{gradient, sources, with_gradient, call.hidden_gradient, c},
                  "loss hidden gradient");
  product(true, false, v, c, with_gradient, logits, gathered, true, call.head_gradient);
}

void CudaKernelSet::vocabulary_loss(const PackedPlan& plan, ConstTensorView hidden,
                                    ConstTensorView head, const LossTerms& terms,
                                    TensorView hidden_gradient, TensorView head_gradient) {
  check_vocabulary_loss(plan, hidden, head, terms, hidden_gradient, head_gradient);
  const LossCall call{terms,
                      hidden.dim(1),
                      head.dim(0),
                      floats(hidden),
                      floats(head),
                      floats(terms.teacher.hidden),
                      floats(terms.teacher.head),
                      floats(hidden_gradient),
                      floats(head_gradient)};
  queue_.zero(hidden_gradient);
  for (const CudaPackedPlan::LossChunk& chunk :
       on_device(plan).loss(call.vocabulary, loss_use(terms))) {
    loss_chunk(call, chunk);
  }
}

}  // namespace jforge
