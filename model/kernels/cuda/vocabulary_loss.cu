/// Output projection and both losses in one pass (METHOD.md §4), in chunks of rows.

#include <cmath>

#include "model/kernels/cuda/add_row_groups.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "model/kernels/cuda/reads_ahead.h"
#include "model/kernels/device_loss.h"

namespace jforge {

namespace {

constexpr std::int64_t kLossLanes = 256;

/// Unweighted.
struct ItemTerms {
  double consistency;
  double autoregressive;
};

/// Block index = target row.
struct GatherRows {
  FloatSource source;
  const std::int64_t* rows;
  FloatTarget target;
  std::int64_t columns;
  bool words;  ///< Rows are whole, aligned words.

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  __device__ void operator()(BlockGroup& group, std::int64_t row) const {
    group.each([&](std::int64_t lane) {
      const std::int64_t from = rows[row] * columns;
      const std::int64_t to = row * columns;
      if (words) {
        move<kWordElements>(lane, group.lanes(), from, to);
      } else {
        move<1>(lane, group.lanes(), from, to);
      }
    });
  }
  template <int kCount>
  __device__ void move(std::int64_t lane, std::int64_t lanes, std::int64_t from,
                       std::int64_t to) const {
    for (std::int64_t i = lane * kCount; i < columns; i += lanes * kCount) {
      float values[kCount];
      source.read(from + i, values);
      target.write(to + i, values);
    }
  }
};

/// Gradients replace logits if both are float32.
struct ItemLoss {
  const LossItemRows* items;
  float consistency_scale;
  float ar_scale;
  const float* logits;
  FloatTarget gradients;
  ItemTerms* terms;
  std::int64_t vocabulary;
  bool distills_clean;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }

  /// Σ exp(z − maximum) of a lane.
  struct LaneSum {
    float maximum;
    double sum;
  };

  /// log Σ exp(z), reading each logit once (Milakov & Gimelshein 2018).
  __device__ float log_sum(BlockGroup& group, const float* z) const {
    LaneSum lane_sum{};
    group.each([&](std::int64_t lane) {
      // Finite, so that −∞ minus it is −∞.
      LaneSum own{-3.402823466e38F, 0.0};
      read_ahead(
          lane, vocabulary, group.lanes(), [&](std::int64_t i) { return z[i]; },
          [&](std::int64_t /*i*/, float value) {
            if (value > own.maximum) {
              own.sum *= static_cast<double>(expf(own.maximum - value));
              own.maximum = value;
            }
            own.sum += static_cast<double>(expf(value - own.maximum));
          });
      lane_sum = own;
    });
    const float highest = group.largest([&](std::int64_t /*lane*/) { return lane_sum.maximum; });
    const double total = group.sum<double>([&](std::int64_t /*lane*/) {
      return lane_sum.sum * static_cast<double>(expf(lane_sum.maximum - highest));
    });
    return highest + static_cast<float>(log(total));
  }

  __device__ void operator()(BlockGroup& group, std::int64_t index) const {
    const LossItemRows item = items[index];
    group.each([&](std::int64_t lane) {
      if (lane == 0) {
        terms[index] = {0.0, 0.0};
      }
    });
    const bool distill_clean = distills_clean && item.target >= 0;
    const bool taught = item.student >= 0 || distill_clean;
    const float* const teacher = logits + (taught ? item.teacher : 0) * vocabulary;
    const float teacher_sum = taught ? log_sum(group, teacher) : 0.0F;
    if (item.student >= 0) {
      teach(group, item.student, teacher, teacher_sum, consistency_scale * item.consistency_weight,
            terms[index].consistency);
    }
    if (distill_clean) {
      teach(group, item.clean, teacher, teacher_sum, ar_scale * item.ar_weight,
            terms[index].autoregressive);
    } else if (item.target >= 0) {
      const std::int64_t begin = item.clean * vocabulary;
      const float* const clean = logits + begin;
      const bool teaches = item.student >= 0 && item.teacher == item.clean;
      const float clean_sum = teaches ? teacher_sum : log_sum(group, clean);
      group.each([&](std::int64_t lane) {
        if (lane == 0) {
          terms[index].autoregressive =
              static_cast<double>(clean_sum) - static_cast<double>(clean[item.target]);
        }
      });
      const float weight = ar_scale * item.ar_weight;
      group.each([&](std::int64_t lane) {
        read_ahead(
            lane, vocabulary, group.lanes(), [&](std::int64_t i) { return clean[i]; },
            [&](std::int64_t i, float logit) {
              const float probability = weight * expf(logit - clean_sum);
              gradients.set(begin + i, i == item.target ? probability - weight : probability);
            });
      });
    }
  }

  /// `divergence` = Σ p_t (log p_t − log p_s); logit gradients are weight · (p_s − p_t).
  __device__ void teach(BlockGroup& group, std::int64_t row, const float* teacher,
                        float teacher_sum, float weight, double& divergence) const {
    const std::int64_t begin = row * vocabulary;
    const float* const student = logits + begin;
    const float student_sum = log_sum(group, student);
    const double total = group.sum<double>([&](std::int64_t lane) {
      double sum = 0;
      struct Both {
        float teacher;
        float student;
      };
      read_ahead(
          lane, vocabulary, group.lanes(),
          [&](std::int64_t i) {
            return Both{teacher[i], student[i]};
          },
          [&](std::int64_t i, const Both& logit) {
            const float log_t = logit.teacher - teacher_sum;
            const float log_s = logit.student - student_sum;
            const float p_t = expf(log_t);
            gradients.set(begin + i, weight * (expf(log_s) - p_t));
            sum += static_cast<double>(p_t * (log_t - log_s));
          });
      return sum;
    });
    group.each([&](std::int64_t lane) {
      if (lane == 0) {
        divergence = total;
      }
    });
  }
};

struct AddTerms {
  const LossItemRows* items;
  const ItemTerms* terms;
  std::int64_t count;
  double* sums;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  __device__ void operator()(BlockGroup& group, std::int64_t /*block*/) const {
    const double consistency = group.sum<double>([&](std::int64_t lane) {
      double sum = 0;
      read_ahead(
          lane, count, group.lanes(),
          [&](std::int64_t i) {
            return static_cast<double>(items[i].consistency_weight) * terms[i].consistency;
          },
          [&](std::int64_t /*i*/, double term) { sum += term; });
      return sum;
    });
    const double autoregressive = group.sum<double>([&](std::int64_t lane) {
      double sum = 0;
      read_ahead(
          lane, count, group.lanes(),
          [&](std::int64_t i) {
            return static_cast<double>(items[i].ar_weight) * terms[i].autoregressive;
          },
          [&](std::int64_t /*i*/, double term) { sum += term; });
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
  DType type;  ///< Of hidden states, head and logit gradients.
  FloatSource hidden;
  const void* head;
  FloatSource teacher_hidden;  ///< Without data: the student's own.
  const void* teacher_head;
  FloatTarget hidden_gradient;
  float* head_gradient;  ///< Null: not wanted.
};

void CudaKernelSet::loss_chunk(const LossCall& call, const CudaPackedPlan::LossChunk& chunk) {
  if (chunk.rows == 0) {
    return;
  }
  const auto& [items, num_items, sources, rows, own, with_gradient, groups] = chunk;
  const std::int64_t c = call.hidden_size;
  const std::int64_t v = call.vocabulary;
  const bool narrow = call.type == DType::bfloat16;
  const auto element_bytes = static_cast<std::int64_t>(dtype_bytes(call.type));
  auto* const gathered = loss_hidden_.at_least<std::byte>(rows * c * element_bytes);
  auto* const logits = loss_logits_.at_least<float>(rows * v);
  auto* const terms = partials_.at_least<ItemTerms>(num_items);
  // Rows with gradient come first.
  const FloatTarget logit_gradients{
      narrow ? static_cast<void*>(loss_rounded_.at_least<BFloat16>(with_gradient * v)) : logits,
      narrow};
  const auto project = [&](const FloatSource& states, const void* head, std::int64_t begin,
                           std::int64_t end) {
    std::byte* const part = gathered + begin * c * element_bytes;
    const FloatTarget target{part, narrow};
    queue_.launch(end - begin, kLossLanes,
                  GatherRows{states, chunk.sources + begin, target, c,
                             c % kWordElements == 0 && begin_words(states, target)},
                  "loss rows");
    product({.transpose_b = true,
             .m = end - begin,
             .n = call.vocabulary,
             .k = c,
             .operands = call.type,
             .a = part,
             .b = head,
             .c = logits + begin * call.vocabulary});
  };
  project(call.hidden, call.head, 0, own);
  if (rows > own) {
    project(call.teacher_hidden, call.teacher_head, own, rows);
  }
  queue_.launch(num_items, kLossLanes,
                ItemLoss{items, call.terms.consistency_scale, call.terms.ar_scale, logits,
                         logit_gradients, terms, v, call.terms.ar_loss == ArLoss::distillation},
                "loss terms");
  queue_.launch(1, kLossLanes, AddTerms{items, terms, num_items, sums_of(call.terms.sums)},
                "loss sums");
  auto* const gradient = loss_gradient_.at_least<float>(with_gradient * c);
  product({.m = with_gradient,
           .n = c,
           .k = v,
           .operands = call.type,
           .a = logit_gradients.data,
           .b = call.head,
           .c = gradient});
  queue_.launch(groups.distinct, kRowGroupLanes,
                AddRowGroups<std::int64_t>{groups, sources, {gradient}, call.hidden_gradient, c},
                "loss hidden gradient");
  if (call.head_gradient == nullptr) {
    return;
  }
  product({.transpose_a = true,
           .m = v,
           .n = c,
           .k = with_gradient,
           .operands = call.type,
           .a = logit_gradients.data,
           .b = gathered,
           .c = call.head_gradient,
           .accumulate = true});
}

void CudaKernelSet::vocabulary_loss(const PackedPlan& plan, ConstTensorView hidden,
                                    ConstTensorView head, const LossTerms& terms,
                                    TensorView hidden_gradient, TensorView head_gradient) {
  check_vocabulary_loss(plan, hidden, head, terms, hidden_gradient, head_gradient);
  const LossCall call{terms,
                      hidden.dim(1),
                      head.dim(0),
                      head.dtype(),
                      floating(hidden),
                      floating(head).data,
                      floating(terms.teacher.hidden),
                      floating(terms.teacher.head).data,
                      floating(hidden_gradient),
                      head_gradient.empty() ? nullptr : floats(head_gradient)};
  queue_.zero(hidden_gradient);
  for (const CudaPackedPlan::LossChunk& chunk :
       on_device(plan).loss(device_loss_rows(call.vocabulary), loss_use(terms))) {
    loss_chunk(call, chunk);
  }
}

}  // namespace jforge
