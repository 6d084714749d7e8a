#include "model/transformer/training_transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "model/transformer/layer_parameters_internal.h"
#include "runtime/phase_clock.h"
#include "runtime/tensor/buffer.h"

namespace jforge {
namespace {

/// What backward needs of a norm over the heads of queries or keys.
struct NormedHeads {
  TensorView projected;    ///< [T, heads, D] as the projection left them.
  TensorView inverse_rms;  ///< One for each row that is normed.

  /// Heads [T, heads, D] as the rows that are normed.
  [[nodiscard]] TensorView rows(const TensorView& heads) const {
    const std::int64_t count = inverse_rms.dim(0);
    return heads.reshaped({count, heads.elements() / count});
  }
};

/// What backward needs of a layer beside its input and output. In the compute type, except inverse
/// roots, log-sums and the residual stream: those add up and are float32.
struct LayerActivations {
  TensorView attention_input;  ///< [T, C] after the first norm.
  TensorView inverse_rms_1;    ///< [T]
  TensorView q;                ///< [T, H, D] after rotary.
  TensorView k;                ///< [T, Hkv, D] after rotary.
  TensorView v;                ///< [T, Hkv, D]
  TensorView attention;        ///< [T, H, D]
  TensorView log_sum_exp;      ///< [T, H]
  NormedHeads q_norm;          ///< Empty where the model has no such norm, as k_norm.
  NormedHeads k_norm;
  TensorView middle;         ///< [T, C] residual stream after attention.
  TensorView mlp_input;      ///< [T, C] after the second norm.
  TensorView inverse_rms_2;  ///< [T]
  TensorView gate;           ///< [T, F]
  TensorView up;             ///< [T, F]
  TensorView activated;      ///< [T, F]
};

/// What makes queries or keys.
struct HeadWeights {
  LayerWeight weight;
  LayerWeight bias;
  LayerWeight norm;
};
constexpr HeadWeights kQueryWeights{LayerWeight::q, LayerWeight::q_bias, LayerWeight::q_norm};
constexpr HeadWeights kKeyWeights{LayerWeight::k, LayerWeight::k_bias, LayerWeight::k_norm};

/// Gradients in flight; reused by every layer.
struct Gradients {
  TensorView residual;          ///< [T, C] float32
  TensorView rounded_residual;  ///< [T, C] the same as an operand; empty when that is float32.
  TensorView normed;            ///< [T, C] gradient of a norm's output.
  TensorView q;                 ///< [T, H, D]
  TensorView k;                 ///< [T, Hkv, D]
  TensorView v;                 ///< [T, Hkv, D]
  TensorView attention;         ///< [T, H, D]
  TensorView gate;              ///< [T, F]
  TensorView up;                ///< [T, F]
  TensorView activated;         ///< [T, F]
};

/// Hands out consecutive, cache-line aligned tensors of one block; without a block it only counts.
class Carver {
 public:
  Carver(std::byte* base, Device device) : base_(base), device_(device) {}
  TensorView take(DType dtype, Shape shape) {
    constexpr std::size_t kLine = 64;
    const std::size_t begin = used_;
    const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * dtype_bytes(dtype);
    used_ += (bytes + kLine - 1) / kLine * kLine;
    return base_ == nullptr ? TensorView() : TensorView(base_ + begin, dtype, shape, device_);
  }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }

 private:
  std::byte* base_;
  Device device_;
  std::size_t used_ = 0;
};

TensorView matrix(const TensorView& heads) {
  return heads.reshaped({heads.dim(0), heads.dim(1) * heads.dim(2)});
}

/// Gradient of a borrowed group.
class OpenGradient {
 public:
  OpenGradient(GradientSink& sink, const ParameterTable& table, std::int32_t group)
      : sink_(sink),
        group_(group),
        offset_(table.groups()[static_cast<std::size_t>(group)].offset),
        view_(sink.open(group)),
        undefined_(sink.undefined(group)) {}
  /// Zeroes what is undefined, so that gradients can be added.
  void clear(Queue& queue) const {
    if (undefined_) {
      queue.zero(view_);
    }
  }
  /// The same for all but matrices, for which products_add() says what is to be done.
  void clear_between_matrices(Queue& queue, const ParameterTable& table) const {
    if (!undefined_) {
      return;
    }
    std::int64_t begin = 0;
    const auto clear_up_to = [&](std::int64_t end) {
      if (end > begin) {
        queue.zero(view_.rows(begin, end));
      }
    };
    for (const ParameterEntry& entry : table.entries()) {
      if (entry.group == group_ && entry.shape.rank() == 2) {
        clear_up_to(entry.offset - offset_);
        begin = entry.offset - offset_ + entry.shape.elements();
      }
    }
    clear_up_to(view_.elements());
  }
  [[nodiscard]] bool products_add() const noexcept { return !undefined_; }
  /// The tensor of an entry of this group, empty for none.
  [[nodiscard]] TensorView operator()(const ParameterEntry* entry) const {
    return entry == nullptr ? TensorView() : tensor_in_group(view_, offset_, *entry);
  }
  void ready() const { sink_.ready(group_); }

 private:
  GradientSink& sink_;
  std::int32_t group_;
  std::int64_t offset_;
  TensorView view_;
  bool undefined_;
};

/// The activations of a packed batch in one block.
struct Activations {
  Activations(const TransformerConfig& config, TrainingTransformer::Options options)
      : layer_plan(config),
        compute(options.compute),
        forward_only(options.forward_only),
        residual(layer_plan.rope.size() + 1),
        activations(keeps_one_layer(options) ? 1 : layer_plan.rope.size()) {}

  static bool keeps_one_layer(const TrainingTransformer::Options& options) {
    return options.activation_checkpointing || options.forward_only;
  }

  void carve(Carver& carver, std::int64_t num_rows);
  [[nodiscard]] std::size_t bytes(std::int64_t num_rows) {
    Carver counter(nullptr, Device::cpu);
    carve(counter, num_rows);
    return counter.used();
  }

  const LayerPlan layer_plan;
  DType compute;
  bool forward_only;
  /// [L + 1] of [T, C]: every layer's input, then the last output. Forward only, two take turns.
  std::vector<TensorView> residual;
  std::vector<LayerActivations> activations;
  TensorView final_inverse_rms;  ///< [T]
  TensorView hidden;             ///< [T, C]
  Gradients gradient;
};

}  // namespace

struct TrainingTransformer::State : Activations {
  State(const TransformerConfig& model_config, const ParameterTable& model_table, KernelSet& set,
        MemoryAccount& memory, Options chosen)
      : Activations(model_config, chosen),
        table(model_table),
        parameters(model_config, table),
        kernels(set),
        account(memory),
        options(chosen),
        plan(set.make_plan(layer_plan.heads, memory)) {}

  void reserve(std::int64_t rows);
  void check(const PackedBatch& batch) const;
  LayerActivations& layer_activations(std::size_t layer) {
    return activations[keeps_one_layer(options) ? 0 : layer];
  }
  [[nodiscard]] TensorView rounded_residual_gradient();
  void project_heads(const BorrowedGroup& borrowed, const LayerParameters& weights,
                     const HeadWeights& which, const TensorView& input, const NormedHeads& norm,
                     const TensorView& heads);
  void norm_stream(const TensorView& branch, const TensorView& stream,
                   const ConstTensorView& weight, const TensorView& y,
                   const TensorView& inverse_rms);
  void forward_attention(const BorrowedGroup& borrowed, std::size_t layer,
                         const TensorView& branch);
  void forward_mlp(const BorrowedGroup& borrowed, std::size_t layer);
  void backward_mlp(const BorrowedGroup& borrowed, const OpenGradient& gradients,
                    std::size_t layer);
  void backward_attention(const BorrowedGroup& borrowed, const OpenGradient& gradients,
                          std::size_t layer);

  const ParameterTable table;
  const ModelParameters parameters;
  KernelSet& kernels;
  MemoryAccount& account;
  const Options options;

  std::unique_ptr<PackedPlan> plan;  ///< Of the last forward()'s batch.
  Buffer buffer;
  std::int64_t rows = -1;  ///< Of the last forward(); −1 before the first.
};

void Activations::carve(Carver& carver, std::int64_t num_rows) {
  const AttentionHeads& heads = layer_plan.heads;
  const Shape stream{num_rows, layer_plan.hidden};
  const Shape query{num_rows, heads.heads, heads.size};
  const Shape key_value{num_rows, heads.key_heads, heads.size};
  const Shape wide{num_rows, layer_plan.wide};
  const auto take = [&](Shape shape) { return carver.take(compute, shape); };
  const auto take_sums = [&](Shape shape) { return carver.take(DType::float32, shape); };
  const auto take_norm = [&](LayerWeight norm, Shape shape) {
    const std::int64_t columns = layer_plan.elements(norm);
    return columns == 0 ? NormedHeads{}
                        : NormedHeads{take(shape), take_sums({shape.elements() / columns})};
  };
  for (std::size_t i = 0; i < residual.size(); ++i) {
    residual[i] = forward_only && i >= 2 ? residual[i - 2] : take_sums(stream);
  }
  for (LayerActivations& layer : activations) {
    layer = {.attention_input = take(stream),
             .inverse_rms_1 = take_sums({num_rows}),
             .q = take(query),
             .k = take(key_value),
             .v = take(key_value),
             .attention = take(query),
             .log_sum_exp = take_sums({num_rows, heads.heads}),
             .q_norm = take_norm(LayerWeight::q_norm, query),
             .k_norm = take_norm(LayerWeight::k_norm, key_value),
             .middle = take_sums(stream),
             .mlp_input = take(stream),
             .inverse_rms_2 = take_sums({num_rows}),
             .gate = take(wide),
             .up = take(wide),
             .activated = take(wide)};
  }
  final_inverse_rms = take_sums({num_rows});
  hidden = take(stream);
  if (forward_only) {
    return;
  }
  gradient = {.residual = take_sums(stream),
              .rounded_residual = compute == DType::float32 ? TensorView() : take(stream),
              .normed = take(stream),
              .q = take(query),
              .k = take(key_value),
              .v = take(key_value),
              .attention = take(query),
              .gate = take(wide),
              .up = take(wide),
              .activated = take(wide)};
}

void TrainingTransformer::State::reserve(std::int64_t num_rows) {
  const std::size_t needed = bytes(num_rows);
  if (needed > buffer.bytes()) {
    buffer = Buffer();  // The old block goes first: the peak is one block, not two.
    buffer = Buffer(needed, account, kernels.device(), MemoryUse::activations);
  }
  if (num_rows > 0) {
    Carver carver(buffer.data(), kernels.device());
    carve(carver, num_rows);
  }
  rows = num_rows;
}

void TrainingTransformer::State::check(const PackedBatch& batch) const {
  const std::int64_t vocabulary = parameters.embedding->shape[0];
  for (const TokenId token : batch.tokens) {
    if (token < 0 || token >= vocabulary) {
      throw DataError(fmt::format(
          "token {} is outside the model's vocabulary of {}; the training data belong to another "
          "model",
          token, vocabulary));
    }
  }
}

/// Projects a layer's normed input to `heads` and norms them, where the model does.
void TrainingTransformer::State::project_heads(const BorrowedGroup& borrowed,
                                               const LayerParameters& weights,
                                               const HeadWeights& which, const TensorView& input,
                                               const NormedHeads& norm, const TensorView& heads) {
  const ParameterEntry* const norm_weight = weights[which.norm];
  const TensorView& projected = norm_weight == nullptr ? heads : norm.projected;
  kernels.linear(input, borrowed(weights[which.weight]), borrowed(weights[which.bias]),
                 matrix(projected));
  if (norm_weight != nullptr) {
    kernels.rms_norm(norm.rows(projected), borrowed(norm_weight), layer_plan.epsilon,
                     norm.rows(heads), norm.inverse_rms);
  }
}

/// Norms the residual stream after what is left to add to it, if anything.
void TrainingTransformer::State::norm_stream(const TensorView& branch, const TensorView& stream,
                                             const ConstTensorView& weight, const TensorView& y,
                                             const TensorView& inverse_rms) {
  if (branch.empty()) {
    kernels.rms_norm(stream, weight, layer_plan.epsilon, y, inverse_rms);
  } else {
    kernels.add_rms_norm(branch, stream, weight, layer_plan.epsilon, y, inverse_rms);
  }
}

/// Up to the output projection. `branch` is what residual[layer] still lacks, empty where it is
/// complete.
void TrainingTransformer::State::forward_attention(const BorrowedGroup& borrowed, std::size_t layer,
                                                   const TensorView& branch) {
  const LayerParameters& weights = parameters.layers[layer];
  const LayerActivations& kept = layer_activations(layer);
  norm_stream(branch, residual[layer], borrowed(weights[LayerWeight::attention_norm]),
              kept.attention_input, kept.inverse_rms_1);
  project_heads(borrowed, weights, kQueryWeights, kept.attention_input, kept.q_norm, kept.q);
  project_heads(borrowed, weights, kKeyWeights, kept.attention_input, kept.k_norm, kept.k);
  kernels.linear(kept.attention_input, borrowed(weights[LayerWeight::v]),
                 borrowed(weights[LayerWeight::v_bias]), matrix(kept.v));
  kernels.rotary(kept.q, kept.k, plan->rows(), layer_plan.rope[layer]);
  kernels.packed_attention(*plan, kept.q, kept.k, kept.v, kept.attention, kept.log_sum_exp);
  kernels.linear(matrix(kept.attention), borrowed(weights[LayerWeight::o]), {}, kept.middle);
}

/// Up to the activated rows: the down projection's result is a residual, which checkpointing keeps.
void TrainingTransformer::State::forward_mlp(const BorrowedGroup& borrowed, std::size_t layer) {
  const LayerParameters& weights = parameters.layers[layer];
  const LayerActivations& kept = layer_activations(layer);
  norm_stream(residual[layer], kept.middle, borrowed(weights[LayerWeight::feed_forward_norm]),
              kept.mlp_input, kept.inverse_rms_2);
  kernels.linear(kept.mlp_input, borrowed(weights[LayerWeight::gate]), {}, kept.gate);
  kernels.linear(kept.mlp_input, borrowed(weights[LayerWeight::up]), {}, kept.up);
  kernels.swiglu(kept.gate, kept.up, kept.activated);
}

/// The residual stream's gradient as it is now, as an operand of products.
TensorView TrainingTransformer::State::rounded_residual_gradient() {
  if (compute == DType::float32) {
    return gradient.residual;
  }
  kernels.convert(gradient.residual, gradient.rounded_residual);
  return gradient.rounded_residual;
}

void TrainingTransformer::State::backward_mlp(const BorrowedGroup& borrowed,
                                              const OpenGradient& gradients, std::size_t layer) {
  const LayerParameters& weights = parameters.layers[layer];
  const LayerActivations& kept = layer_activations(layer);
  const TensorView residual_gradient = rounded_residual_gradient();
  kernels.linear_backward_weight(residual_gradient, kept.activated,
                                 gradients(weights[LayerWeight::down]), {},
                                 gradients.products_add());
  kernels.linear_backward_input(residual_gradient, borrowed(weights[LayerWeight::down]),
                                gradient.activated, false);
  kernels.swiglu_backward(gradient.activated, kept.gate, kept.up, gradient.gate, gradient.up);
  kernels.linear_backward_weight(gradient.gate, kept.mlp_input,
                                 gradients(weights[LayerWeight::gate]), {},
                                 gradients.products_add());
  kernels.linear_backward_weight(gradient.up, kept.mlp_input, gradients(weights[LayerWeight::up]),
                                 {}, gradients.products_add());
  kernels.linear_backward_input(gradient.gate, borrowed(weights[LayerWeight::gate]),
                                gradient.normed, false);
  kernels.linear_backward_input(gradient.up, borrowed(weights[LayerWeight::up]), gradient.normed,
                                true);
  const ParameterEntry* const norm = weights[LayerWeight::feed_forward_norm];
  kernels.rms_norm_backward(gradient.normed, kept.middle, borrowed(norm), kept.inverse_rms_2,
                            gradient.residual, gradients(norm));
}

void TrainingTransformer::State::backward_attention(const BorrowedGroup& borrowed,
                                                    const OpenGradient& gradients,
                                                    std::size_t layer) {
  const LayerParameters& weights = parameters.layers[layer];
  const LayerActivations& kept = layer_activations(layer);
  const TensorView residual_gradient = rounded_residual_gradient();
  kernels.linear_backward_weight(residual_gradient, matrix(kept.attention),
                                 gradients(weights[LayerWeight::o]), {}, gradients.products_add());
  kernels.linear_backward_input(residual_gradient, borrowed(weights[LayerWeight::o]),
                                matrix(gradient.attention), false);
  kernels.packed_attention_backward(*plan, gradient.attention, kept.q, kept.k, kept.v,
                                    kept.attention, kept.log_sum_exp, gradient.q, gradient.k,
                                    gradient.v);
  kernels.rotary_backward(gradient.q, gradient.k, plan->rows(), layer_plan.rope[layer]);
  const auto projection = [&](const TensorView& output_gradient, LayerWeight weight,
                              LayerWeight bias, bool accumulate) {
    kernels.linear_backward_weight(matrix(output_gradient), kept.attention_input,
                                   gradients(weights[weight]), gradients(weights[bias]),
                                   gradients.products_add());
    kernels.linear_backward_input(matrix(output_gradient), borrowed(weights[weight]),
                                  gradient.normed, accumulate);
  };
  // Attention's own gradient has been used: its place serves those before the norms.
  const auto before_norm = [&](const TensorView& normed_gradient, const NormedHeads& norm,
                               const ParameterEntry* weight) {
    if (weight == nullptr) {
      return normed_gradient;
    }
    const TensorView before(gradient.attention.raw(), compute, normed_gradient.shape(),
                            gradient.attention.device());
    kernels.queue().zero(before);
    kernels.rms_norm_backward(norm.rows(normed_gradient), norm.rows(norm.projected),
                              borrowed(weight), norm.inverse_rms, norm.rows(before),
                              gradients(weight));
    return before;
  };
  projection(before_norm(gradient.q, kept.q_norm, weights[LayerWeight::q_norm]), LayerWeight::q,
             LayerWeight::q_bias, false);
  projection(before_norm(gradient.k, kept.k_norm, weights[LayerWeight::k_norm]), LayerWeight::k,
             LayerWeight::k_bias, true);
  projection(gradient.v, LayerWeight::v, LayerWeight::v_bias, true);
  const ParameterEntry* const norm = weights[LayerWeight::attention_norm];
  kernels.rms_norm_backward(gradient.normed, residual[layer], borrowed(norm), kept.inverse_rms_1,
                            gradient.residual, gradients(norm));
}

TrainingTransformer::TrainingTransformer(const TransformerConfig& config,
                                         const ParameterTable& table, KernelSet& kernels,
                                         MemoryAccount& account, Options options)
    : state_(std::make_unique<State>(config, table, kernels, account, options)) {
  expect(options.compute == DType::float32 || options.compute == DType::bfloat16,
         "training computes in float32 or bfloat16");
}

TrainingTransformer::~TrainingTransformer() = default;

std::size_t TrainingTransformer::bytes(const TransformerConfig& config, std::int64_t rows,
                                       Options options) {
  return Activations(config, options).bytes(rows);
}

ConstTensorView TrainingTransformer::forward(const PackedBatch& batch,
                                             ParameterSource& parameters) {
  State& state = *state_;
  const ModelParameters& model = state.parameters;
  state.check(batch);
  state.plan->assign(batch);
  state.reserve(batch.layout.num_rows);
  const bool work = state.rows > 0;  // A rank without samples still takes part in gathering.
  {
    const BorrowedGroup borrowed(parameters, state.table, model.embedding->group);
    if (work) {
      state.kernels.embedding(state.plan->rows(), borrowed(model.embedding), state.residual[0]);
    }
  }
  // A layer's output lacks the stream before its last branch until the next norm passes over it.
  TensorView branch;
  for (std::size_t layer = 0; layer < model.layers.size(); ++layer) {
    const BorrowedGroup borrowed(parameters, state.table, model.layers[layer].group);
    if (work) {
      state.forward_attention(borrowed, layer, branch);
      state.forward_mlp(borrowed, layer);
      const LayerActivations& kept = state.layer_activations(layer);
      state.kernels.linear(kept.activated, borrowed(model.layers[layer][LayerWeight::down]), {},
                           state.residual[layer + 1]);
      branch = kept.middle;
    }
    note_progress();
  }
  const BorrowedGroup borrowed(parameters, state.table, model.final_norm->group);
  if (!work) {
    return {};
  }
  state.norm_stream(branch, state.residual.back(), borrowed(model.final_norm), state.hidden,
                    state.final_inverse_rms);
  return state.hidden;
}

void TrainingTransformer::loss_and_backward(ParameterSource& parameters, const LossTerms& terms,
                                            GradientSink& gradients,
                                            const TeacherForward& teacher) {
  State& state = *state_;
  expect(!state.options.forward_only, "loss_and_backward of a transformer made for forward alone");
  expect(state.rows >= 0, "loss_and_backward comes after forward()");
  const ModelParameters& model = state.parameters;
  Gradients& gradient = state.gradient;
  const bool work = state.rows > 0;
  const bool tied = model.head == model.embedding;

  std::optional<OpenGradient> embedding;  // With a tied head it is open from first to last.
  {
    std::optional<BorrowedGroup> teacher_head;
    if (teacher.parameters != nullptr) {
      teacher_head.emplace(*teacher.parameters, state.table, model.head->group);
    }
    const BorrowedGroup borrowed(parameters, state.table, model.final_norm->group);
    std::optional<BorrowedGroup> tied_head;
    if (tied) {
      tied_head.emplace(parameters, state.table, model.head->group);
      embedding.emplace(gradients, state.table, model.head->group);
    }
    const OpenGradient head(gradients, state.table, model.final_norm->group);
    head.clear(state.kernels.queue());
    if (tied) {
      embedding->clear(state.kernels.queue());
    }
    if (work) {
      LossTerms with_teacher = terms;
      if (teacher_head && !teacher.hidden.empty()) {
        with_teacher.teacher = {teacher.hidden, (*teacher_head)(model.head)};
      }
      state.kernels.vocabulary_loss(*state.plan, state.hidden,
                                    (tied ? *tied_head : borrowed)(model.head), with_teacher,
                                    gradient.normed, (tied ? *embedding : head)(model.head));
      state.kernels.queue().zero(gradient.residual);
      state.kernels.rms_norm_backward(gradient.normed, state.residual.back(),
                                      borrowed(model.final_norm), state.final_inverse_rms,
                                      gradient.residual, head(model.final_norm));
    }
    head.ready();
    note_progress();
  }
  for (std::size_t layer = model.layers.size(); layer-- > 0;) {
    const std::int32_t group = model.layers[layer].group;
    const BorrowedGroup borrowed(parameters, state.table, group);
    const OpenGradient opened(gradients, state.table, group);
    if (!work) {
      opened.clear(state.kernels.queue());
    } else {
      opened.clear_between_matrices(state.kernels.queue(), state.table);
      if (state.options.activation_checkpointing) {
        state.forward_attention(borrowed, layer, {});
        state.forward_mlp(borrowed, layer);
      }
      state.backward_mlp(borrowed, opened, layer);
      state.backward_attention(borrowed, opened, layer);
    }
    opened.ready();
    note_progress();
  }
  if (!tied) {
    embedding.emplace(gradients, state.table, model.embedding->group);
    embedding->clear(state.kernels.queue());
  }
  if (work) {
    state.kernels.embedding_backward(*state.plan, gradient.residual, (*embedding)(model.embedding));
  }
  embedding->ready();
  note_progress();
}

double forward_flops(const TransformerConfig& config, const PackedBatch& batch) {
  const LayerPlan plan(config);
  double visible_keys = 0;
  for (const AttentionSegment& segment : batch.layout.segments) {
    const auto rows = static_cast<double>(segment.row_end - segment.row_begin);
    const auto prefix = static_cast<double>(segment.prefix_end - segment.prefix_begin);
    const auto before = static_cast<double>(segment.row_begin - segment.causal_begin);
    visible_keys += rows * (prefix + before) + rows * (rows + 1) / 2;
  }
  const auto rows = static_cast<double>(batch.layout.num_rows);
  return 2 * static_cast<double>(config.num_layers) *
         (rows * static_cast<double>(plan.elements(2)) +
          2 * visible_keys * static_cast<double>(plan.query));
}

double training_flops(const TransformerConfig& config, const PackedBatch& batch) {
  // Backward of a product is two products of its size.
  constexpr double kForwardAndBackward = 3;
  double head_products = 0;
  for (const LossItem& item : batch.loss_items) {
    const bool has_target = item.target >= 0;
    const bool has_student = item.student_row >= 0;
    head_products += kForwardAndBackward * ((has_target ? 1 : 0) + (has_student ? 1 : 0));
    // A mere teacher has no backward; one that has a target is counted already.
    head_products += item.teacher_row >= 0 || (has_student && !has_target) ? 1 : 0;
  }
  return kForwardAndBackward * forward_flops(config, batch) +
         2 * head_products * static_cast<double>(config.hidden_size) *
             static_cast<double>(config.vocabulary_size);
}

}  // namespace jforge
