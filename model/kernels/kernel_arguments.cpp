#include "model/kernels/kernel_arguments.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace jforge {

void expect_heads(Device device, const AttentionHeads& heads) {
  if (device != Device::cpu && heads.group() > kMostDeviceGroup) {
    throw EnvironmentError(
        "the model has " + std::to_string(heads.heads) + " query heads and " +
        std::to_string(heads.key_heads) + " key heads, " + std::to_string(heads.group()) +
        " to one, and attention on a CUDA device takes at most " +
        std::to_string(kMostDeviceGroup) + ": set model.device (--device) to \"cpu\"");
  }
}

void expect_float32(const ConstTensorView& view, const char* name) {
  if (view.dtype() != DType::float32) [[unlikely]] {
    expect(false, std::string(name) + " is " + dtype_name(view.dtype()) + ", expected float32");
  }
}

void expect_floating(const ConstTensorView& view, const char* name) {
  if (view.dtype() != DType::float32 && view.dtype() != DType::bfloat16) [[unlikely]] {
    expect(false, std::string(name) + " is " + dtype_name(view.dtype()) +
                      ", expected float32 or bfloat16");
  }
}

DType product_type(const ConstTensorView& a, const ConstTensorView& b,
                   const ConstTensorView& result, const char* name) {
  expect_floating(a, name);
  if (a.dtype() != b.dtype() || (result.dtype() != a.dtype() && result.dtype() != DType::float32))
      [[unlikely]] {
    expect(false, std::string(name) + ": operands are " + dtype_name(a.dtype()) + " and " +
                      dtype_name(b.dtype()) + ", the result " + dtype_name(result.dtype()) +
                      "; operands must be equal and the result like them or float32");
  }
  return a.dtype();
}

void expect_tokens(const PlannedRows& rows, std::int64_t vocabulary) {
  expect(rows.token_limit <= vocabulary, "token id outside the embedding table");
}

void expect_embedding_types(const ConstTensorView& table, const ConstTensorView& output) {
  expect_floating(table, "embedding table");
  expect(output.dtype() == table.dtype() || output.dtype() == DType::float32,
         "embedding: the output must have the table's type or float32");
}

void expect_kept_rows(const DecodePlan& plan, const ConstTensorView& x) {
  expect(x.shape().rank() == 2 && x.dim(0) == plan.num_rows(DecodeRows::all),
         "keep_rows: x must be a matrix of the plan's rows");
}

void expect_cache(const DecodePlan& plan, const LayerCache& cache) {
  expect(cache.keys.shape().rank() == 4 && cache.keys.dim(1) == kCachePageRows,
         "the cache must be [pages, 64, Hkv, D]");
  expect_shape(cache.keys,
               {cache.keys.dim(0), kCachePageRows, plan.heads().key_heads, plan.heads().size},
               "cache keys");
  expect_shape(cache.values, cache.keys.shape(), "cache values");
  expect(cache.keys.dtype() == plan.cache_type() && cache.values.dtype() == plan.cache_type(),
         "the cache is of another type than its plan");
  expect(plan.page_limit() <= cache.keys.dim(0), "a decoding row's page is not the cache's");
}

void check_cache_write(const DecodePlan& plan, const ConstTensorView& k, const ConstTensorView& v,
                       const LayerCache& cache) {
  expect_cache(plan, cache);
  const Shape shape{plan.num_rows(DecodeRows::all), plan.heads().key_heads, plan.heads().size};
  expect_shape(k, shape, "cache_write k");
  expect_shape(v, shape, "cache_write v");
}

void check_rotate_and_write(const DecodePlan& plan, DecodeRows which, const ConstTensorView& q,
                            const HeadNorms& norms) {
  expect_shape(q, {plan.num_rows(which), plan.heads().heads, plan.heads().size},
               "rotate_and_write q");
  expect(norms.q.empty() == norms.k.empty(), "queries and keys are both normed, or neither");
}

void check_cached_attention(const DecodePlan& plan, DecodeRows which, const ConstTensorView& q,
                            const LayerCache& cache, const ConstTensorView& output) {
  expect_cache(plan, cache);
  expect_shape(q, {plan.num_rows(which), plan.heads().heads, plan.heads().size},
               "cached_attention q");
  expect_shape(output, q.shape(), "cached_attention output");
}

void read_tokens(KernelSet& kernels, ConstTensorView tokens, std::span<TokenId> result) {
  const TensorView host(result.data(), Shape{std::ssize(result)});
  kernels.queue().copy(tokens, host);
  kernels.queue().synchronize();
  const auto missing = std::ranges::find(result, kNoToken);
  if (missing != result.end()) {
    throw NumericalError("logits of decoding row " + std::to_string(missing - result.begin()) +
                         " hold NaN: the model's weights are damaged or training diverged");
  }
}

void check_sampled(const ConstTensorView& logits, std::int64_t rows,
                   const ConstTensorView& tokens) {
  expect(logits.shape().rank() == 2 && logits.dim(1) >= 1, "sample_tokens: logits of no tokens");
  expect_float32(logits, "sample_tokens logits");
  expect_shape(logits, Shape{rows, logits.dim(1)}, "sample_tokens logits");
  expect_shape(tokens, Shape{rows}, "sample_tokens tokens");
}

LinearShape check_linear(const ConstTensorView& x, const ConstTensorView& weight,
                         const ConstTensorView& y) {
  expect(x.shape().rank() == 2 && weight.shape().rank() == 2,
         "linear: x and weight must be matrices");
  const LinearShape shape{x.dim(0), weight.dim(0), weight.dim(1)};
  expect_shape(x, Shape{shape.m, shape.k}, "linear x");
  expect_shape(y, Shape{shape.m, shape.n}, "linear y");
  return shape;
}

void check_rotary(const ConstTensorView& x, const PlannedRows& rows) {
  expect(x.shape().rank() == 3 && x.dim(2) % 2 == 0, "rotary: x must be [T, heads, D] with even D");
  expect(x.dim(0) == rows.positions.elements(), "rotary: one position per row is needed");
}

void check_packed_attention(const PackedPlan& plan, const ConstTensorView& q,
                            const ConstTensorView& k, const ConstTensorView& v,
                            const ConstTensorView& output, const ConstTensorView& log_sum_exp) {
  const auto [heads, key_heads, size] = plan.heads();
  expect_shape(q, Shape{plan.num_rows(), heads, size}, "attention q");
  expect_shape(k, Shape{plan.num_rows(), key_heads, size}, "attention k");
  expect_shape(v, k.shape(), "attention v");
  expect_shape(output, q.shape(), "attention output");
  expect_shape(log_sum_exp, Shape{plan.num_rows(), heads}, "attention log_sum_exp");
}

void expect_sums(const ConstTensorView& sums, std::int64_t count, const char* name) {
  expect_shape(sums, Shape{count}, name);
  expect(sums.dtype() == DType::float64, "sums are float64");
}

double rotary_frequency(const RotarySettings& settings, std::int64_t pair, std::int64_t half) {
  const double plain =
      std::pow(settings.theta, -static_cast<double>(pair) / static_cast<double>(half));
  switch (settings.scaling) {
    case RotaryScaling::none:
      return plain;
    case RotaryScaling::linear:
      return plain / settings.factor;
    case RotaryScaling::off:
      return 0;
    case RotaryScaling::llama3: {
      const double turns =
          static_cast<double>(settings.original_positions) * plain / (2 * std::numbers::pi);
      const double kept =
          std::clamp((turns - settings.low_frequency_factor) /
                         (settings.high_frequency_factor - settings.low_frequency_factor),
                     0.0, 1.0);
      return (1 - kept) * plain / settings.factor + kept * plain;
    }
  }
  throw InternalError("unknown rotary scaling");
}

bool RotaryTable::grow(std::int64_t needed) {
  if (positions >= needed) {
    return false;
  }
  const std::int64_t grown = std::max<std::int64_t>({needed, 2 * positions, 512});
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < half; ++i) {
    frequencies.push_back(rotary_frequency(settings, i, half));
  }
  cosines.resize(static_cast<std::size_t>(grown * half));
  sines.resize(static_cast<std::size_t>(grown * half));
  for (std::int64_t position = positions; position < grown; ++position) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies[static_cast<std::size_t>(i)];
      const auto at = static_cast<std::size_t>(position * half + i);
      cosines[at] = static_cast<float>(settings.scale * std::cos(angle));
      sines[at] = static_cast<float>(settings.scale * std::sin(angle));
    }
  }
  positions = grown;
  return true;
}

void expect_adamw_shapes(const ConstTensorView& gradient, const AdamWState& state) {
  expect_float32(gradient, "adamw gradient");
  for (const auto& [view, name] : {std::pair{state.parameter, "adamw parameter"},
                                   std::pair{state.first_moment, "adamw first_moment"},
                                   std::pair{state.second_moment, "adamw second_moment"}}) {
    expect_float32(view, name);
    expect_shape(view, gradient.shape(), name);
  }
  if (!state.rounded.empty()) {
    expect_shape(state.rounded, gradient.shape(), "adamw rounded");
    expect(state.rounded.dtype() == DType::bfloat16, "adamw: rounded must be bfloat16");
  }
}

void expect_adamw_hashes(const AdamWHashes& hashes) {
  for (const TensorView& sums : {hashes.found, hashes.left}) {
    if (!sums.empty()) {
      expect_shape(sums, Shape{4}, "adamw hashes");
      expect(sums.dtype() == DType::int64, "hashes are int64");
    }
  }
}

void hash_adamw_state(KernelSet& kernels, const AdamWState& state, std::uint64_t seed,
                      const TensorView& sums) {
  std::int64_t place = 0;
  for (const TensorView& part :
       {state.parameter, state.first_moment, state.second_moment, state.rounded}) {
    if (!part.empty()) {
      kernels.content_hash(part, seed, sums.rows(place, place + 1));
    }
    ++place;
  }
}

void KernelSet::content_hash_of_parts(ConstTensorView x, std::uint64_t seed, TensorView sums) {
  const std::int64_t size = part_size(x, sums);
  for (std::int64_t part = 0; part < sums.elements(); ++part) {
    content_hash(x.rows(part * size, (part + 1) * size), seed, sums.rows(part, part + 1));
  }
}

std::int64_t part_size(const ConstTensorView& x, const ConstTensorView& sums) {
  const std::int64_t parts = sums.elements();
  expect(sums.dtype() == DType::int64, "hashes are int64");
  expect(parts > 0 && x.elements() % parts == 0, "a tensor is hashed in equal parts");
  return x.elements() / parts;
}

void expect_hash_sum(const ConstTensorView& sum) {
  expect_shape(sum, Shape{1}, "content_hash sum");
  expect(sum.dtype() == DType::int64, "hashes are int64");
}

AdamWStep adamw_step(const AdamWSettings& settings, bool decay) {
  expect(settings.step >= 1, "adamw: steps count from 1");
  const auto t = static_cast<double>(settings.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(settings.beta1), t);
  const double correction2 = 1.0 - std::pow(static_cast<double>(settings.beta2), t);
  const double rate = static_cast<double>(settings.learning_rate);
  return {.gradient_scale = settings.gradient_scale,
          .beta1 = settings.beta1,
          .beta2 = settings.beta2,
          .decay_factor =
              decay ? static_cast<float>(1.0 - rate * static_cast<double>(settings.weight_decay))
                    : 1.0F,
          .step_size = static_cast<float>(rate / correction1),
          .inverse_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(correction2)),
          .epsilon = settings.epsilon};
}

namespace {

bool uses_student(const LossItem& item, LossUse use) {
  return use.students && item.student_row >= 0;
}

bool uses_clean(const LossItem& item, LossUse use) {
  return item.target >= 0 || (uses_student(item, use) && !use.separate_teacher);
}

bool uses_teacher(const LossItem& item, LossUse use) {
  return use.separate_teacher &&
         (uses_student(item, use) || (use.distills_clean && item.target >= 0));
}

}  // namespace

void LossPlacement::place(std::span<const LossItem> items, LossUse use) {
  sources.clear();
  student.assign(items.size(), -1);
  clean.assign(items.size(), -1);
  const auto take = [&](std::int64_t source) {
    sources.push_back(source);
    return static_cast<std::int64_t>(sources.size()) - 1;
  };
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (uses_student(items[i], use)) {
      student[i] = take(items[i].student_row);
    }
  }
  const auto take_clean = [&](bool with_target) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (uses_clean(items[i], use) && (items[i].target >= 0) == with_target) {
        clean[i] = take(items[i].clean_row);
      }
    }
  };
  take_clean(true);
  with_gradient = static_cast<std::int64_t>(sources.size());
  take_clean(false);
  own = static_cast<std::int64_t>(sources.size());
  teacher = clean;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (uses_teacher(items[i], use)) {
      teacher[i] = take(items[i].teacher_row);
    }
  }
}

void check_vocabulary_loss(const PackedPlan& plan, const ConstTensorView& hidden,
                           const ConstTensorView& head, const LossTerms& terms,
                           const ConstTensorView& hidden_gradient,
                           const ConstTensorView& head_gradient) {
  expect(hidden.shape().rank() == 2 && head.shape().rank() == 2,
         "vocabulary_loss: hidden and head must be matrices");
  expect(hidden.dim(0) == plan.num_rows(), "vocabulary_loss: hidden and plan differ in rows");
  expect_shape(head, Shape{head.dim(0), hidden.dim(1)}, "vocabulary_loss head");
  expect_shape(hidden_gradient, hidden.shape(), "vocabulary_loss hidden_gradient");
  if (!head_gradient.empty()) {
    expect_shape(head_gradient, head.shape(), "vocabulary_loss head_gradient");
    expect_float32(head_gradient, "vocabulary_loss head_gradient");
  }
  expect_floating(hidden, "vocabulary_loss hidden");
  expect(head.dtype() == hidden.dtype(), "vocabulary_loss: hidden and head differ in type");
  expect_floating(hidden_gradient, "vocabulary_loss hidden_gradient");
  expect_sums(terms.sums, 2, "vocabulary_loss sums");
  expect(plan.target_limit() <= head.dim(0), "loss item: target outside the vocabulary");
  const auto& [teacher_hidden, teacher_head] = terms.teacher;
  const bool distills_clean = terms.ar_loss == ArLoss::distillation;
  if (teacher_hidden.empty()) {
    expect(!distills_clean || plan.batch().loss_items.empty(),
           "vocabulary_loss: targets of a teacher need a separate one");
    return;
  }
  expect(teacher_hidden.shape().rank() == 2, "vocabulary_loss: teacher hidden must be a matrix");
  expect_shape(teacher_hidden, Shape{teacher_hidden.dim(0), hidden.dim(1)},
               "vocabulary_loss teacher hidden");
  expect_shape(teacher_head, head.shape(), "vocabulary_loss teacher head");
  expect(teacher_hidden.dtype() == hidden.dtype() && teacher_head.dtype() == head.dtype(),
         "vocabulary_loss: teacher and student differ in type");
  for (const LossItem& item : plan.batch().loss_items) {
    const bool taught = item.student_row >= 0 || (distills_clean && item.target >= 0);
    expect(!taught || (item.teacher_row >= 0 && item.teacher_row < teacher_hidden.dim(0)),
           "loss item: teacher row out of range");
  }
}

std::size_t loss_chunk_end(std::span<const LossItem> items, std::size_t begin, LossUse use,
                           std::int64_t most_rows) {
  std::size_t end = begin;
  std::int64_t taken = 0;
  while (end < items.size()) {
    const std::int64_t rows = (uses_clean(items[end], use) ? 1 : 0) +
                              (uses_student(items[end], use) ? 1 : 0) +
                              (uses_teacher(items[end], use) ? 1 : 0);
    if (taken + rows > most_rows) {
      break;
    }
    taken += rows;
    ++end;
  }
  return end;
}

std::int64_t loss_chunk_rows(std::int64_t vocabulary) {
  constexpr std::int64_t kLogits = 64 << 20;
  constexpr std::int64_t kFewestRows = 64;
  return std::clamp<std::int64_t>(kLogits / vocabulary, kFewestRows, 1024);
}

}  // namespace jforge
