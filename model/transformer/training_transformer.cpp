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

/// Queries or keys and, if they are normed, what backward needs of that.
struct Heads {
  TensorView rotated;      ///< [T, heads, D] Attention's operand.
  TensorView projected;    ///< [T, heads, D] Before the norm.
  TensorView inverse_rms;  ///< [rows that are normed]

  /// Returns `heads` [T, heads, D] as the rows that are normed.
  [[nodiscard]] TensorView rows(const TensorView& heads) const {
    const std::int64_t count = inverse_rms.dim(0);
    return heads.reshaped({count, heads.elements() / count});
  }
};

/// What backward needs of a sublayer's norms, either of which may be missing.
struct SublayerEnds {
  TensorView input;               ///< [T, C] After the norm before it.
  TensorView inverse_rms;         ///< [T]
  TensorView output;              ///< [T, C] Before the norm after it; empty without one.
  TensorView output_inverse_rms;  ///< [T]
};

/// What backward needs of a layer besides its input and output, in the compute type; inverse RMS,
/// log-sums and the residual stream are float32.
struct LayerActivations {
  SublayerEnds attention_ends;
  Heads q, k;
  TensorView v;            ///< [T, Hkv, D]
  TensorView attention;    ///< [T, H, D]
  TensorView log_sum_exp;  ///< [T, H]
  TensorView middle;       ///< [T, C] Residual stream after attention.
  SublayerEnds feed_forward_ends;
  TensorView gate, up, activated;  ///< [T, F]
};

/// Gradients that every layer reuses.
struct Gradients {
  TensorView residual;   ///< [T, C] float32
  TensorView output;     ///< [T, C] Of a sublayer's last product; empty if `residual` is that.
  TensorView input;      ///< [T, C] Of a sublayer's input.
  TensorView q;          ///< [T, H, D]
  TensorView k, v;       ///< [T, Hkv, D]
  TensorView attention;  ///< [T, H, D]
  TensorView gate, up, activated;  ///< [T, F]
};

/// A sublayer adds norm_after(product(… norm_before(stream))) to the residual stream.
struct Sublayer {
  SublayerEnds LayerActivations::*ends;
  LayerWeight norm_before;
  LayerWeight product;
  LayerWeight norm_after;
};
constexpr Sublayer kAttention{&LayerActivations::attention_ends, LayerWeight::attention_norm,
                              LayerWeight::o, LayerWeight::attention_output_norm};
constexpr Sublayer kFeedForward{&LayerActivations::feed_forward_ends,
                                LayerWeight::feed_forward_norm, LayerWeight::down,
                                LayerWeight::feed_forward_output_norm};

/// Cuts cache-line aligned tensors out of a block; without a block it only counts.
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

class OpenGradient {
 public:
  OpenGradient(GradientSink& sink, const ParameterTable& table, std::int32_t group)
      : sink_(sink),
        group_(group),
        offset_(table.groups()[static_cast<std::size_t>(group)].offset),
        view_(sink.open(group)),
        undefined_(sink.undefined(group)) {}
  /// Zeroes an uninitialised gradient.
  void clear(Queue& queue) const {
    if (undefined_) {
      queue.zero(view_);
    }
  }
  /// The same without matrices, which products write unless products_add().
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
  /// Returns an empty view for nullptr.
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

/// A layer in a pass: its weights on loan, activations and, in backward, gradients.
struct LayerPass {
  std::size_t layer;
  const BorrowedGroup& borrowed;
  const LayerParameters& entries;
  const LayerActivations& kept;
  const OpenGradient* gradients = nullptr;

  [[nodiscard]] bool has(LayerWeight weight) const { return entries[weight] != nullptr; }
  /// This and gradient() return an empty view if layers have no such weight.
  [[nodiscard]] ConstTensorView operator()(LayerWeight weight) const {
    return borrowed(entries[weight]);
  }
  [[nodiscard]] TensorView gradient(LayerWeight weight) const {
    return (*gradients)(entries[weight]);
  }
};

/// The activations of a packed batch, in one block.
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
  /// [L + 1] of [T, C]: layers' inputs, then the last output. With forward_only, two alternate.
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
  void scale(const TensorView& x, float factor) {
    if (factor != 1.0F) {
      kernels.convert(x, x, factor);
    }
  }
  void check(const PackedBatch& batch) const;
  [[nodiscard]] LayerPass layer_pass(std::size_t layer, const BorrowedGroup& borrowed,
                                     const OpenGradient* gradients = nullptr) const {
    return {layer, borrowed, parameters.layers[layer],
            activations[keeps_one_layer(options) ? 0 : layer], gradients};
  }
  void project_heads(const LayerPass& pass, LayerWeight weight, LayerWeight bias, LayerWeight norm,
                     const Heads& heads);
  void begin_sublayer(const TensorView& lacking, const TensorView& stream,
                      const ConstTensorView& norm, const TensorView& input,
                      const TensorView& inverse_rms);
  void end_sublayer(const LayerPass& pass, const Sublayer& sublayer, const TensorView& x,
                    const TensorView& result);
  void forward_attention(const LayerPass& pass, const TensorView& lacking);
  void forward_mlp(const LayerPass& pass);
  void end_mlp(const LayerPass& pass, const TensorView& result) {
    end_sublayer(pass, kFeedForward, pass.kept.activated, result);
  }
  void backward_product(const LayerPass& pass, LayerWeight weight, LayerWeight bias,
                        const TensorView& y_gradient, const TensorView& x,
                        const TensorView& x_gradient, bool accumulate) {
    kernels.linear_backward_weight(y_gradient, x, pass.gradient(weight), pass.gradient(bias),
                                   pass.gradients->products_add());
    kernels.linear_backward_input(y_gradient, pass(weight), x_gradient, accumulate);
  }
  void backward_sublayer_end(const LayerPass& pass, const Sublayer& sublayer, const TensorView& x,
                             const TensorView& x_gradient);
  void backward_sublayer_begin(const LayerPass& pass, const Sublayer& sublayer,
                               const TensorView& stream);
  void backward_mlp(const LayerPass& pass);
  void backward_attention(const LayerPass& pass);

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
  const auto take_heads = [&](LayerWeight norm, Shape shape) {
    const std::int64_t columns = layer_plan.elements(norm);
    return columns == 0 ? Heads{.rotated = take(shape), .projected = {}, .inverse_rms = {}}
                        : Heads{take(shape), take(shape), take_sums({shape.elements() / columns})};
  };
  const auto take_ends = [&](const Sublayer& sublayer) {
    SublayerEnds ends{take(stream), take_sums({num_rows}), {}, {}};
    if (layer_plan.elements(sublayer.norm_after) > 0) {
      ends.output = take(stream);
      ends.output_inverse_rms = take_sums({num_rows});
    }
    return ends;
  };
  for (std::size_t i = 0; i < residual.size(); ++i) {
    residual[i] = forward_only && i >= 2 ? residual[i - 2] : take_sums(stream);
  }
  for (LayerActivations& layer : activations) {
    layer = {.attention_ends = take_ends(kAttention),
             .q = take_heads(LayerWeight::q_norm, query),
             .k = take_heads(LayerWeight::k_norm, key_value),
             .v = take(key_value),
             .attention = take(query),
             .log_sum_exp = take_sums({num_rows, heads.heads}),
             .middle = take_sums(stream),
             .feed_forward_ends = take_ends(kFeedForward),
             .gate = take(wide),
             .up = take(wide),
             .activated = take(wide)};
  }
  final_inverse_rms = take_sums({num_rows});
  hidden = take(stream);
  if (forward_only) {
    return;
  }
  const bool converts =
      compute != DType::float32 || layer_plan.elements(LayerWeight::attention_output_norm) > 0;
  gradient = {.residual = take_sums(stream),
              .output = converts ? take(stream) : TensorView(),
              .input = take(stream),
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
    buffer = Buffer();  // Frees the old block first.
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

void TrainingTransformer::State::project_heads(const LayerPass& pass, LayerWeight weight,
                                               LayerWeight bias, LayerWeight norm,
                                               const Heads& heads) {
  const TensorView& projected = pass.has(norm) ? heads.projected : heads.rotated;
  kernels.linear(pass.kept.attention_ends.input, pass(weight), pass(bias), matrix(projected));
  if (pass.has(norm)) {
    kernels.rms_norm(heads.rows(projected), pass(norm), layer_plan.epsilon,
                     heads.rows(heads.rotated), heads.inverse_rms);
  }
}

/// Adds `lacking`, if any, to the residual stream and makes a sublayer's input of it, by `norm` if
/// there is one.
void TrainingTransformer::State::begin_sublayer(const TensorView& lacking, const TensorView& stream,
                                                const ConstTensorView& norm,
                                                const TensorView& input,
                                                const TensorView& inverse_rms) {
  if (!norm.empty() && !lacking.empty()) {
    kernels.add_rms_norm(lacking, stream, norm, layer_plan.stream_epsilon, input, inverse_rms);
    return;
  }
  if (!lacking.empty()) {
    kernels.add(lacking, stream);
  }
  if (norm.empty()) {
    kernels.convert(stream, input);
  } else {
    kernels.rms_norm(stream, norm, layer_plan.stream_epsilon, input, inverse_rms);
  }
}

/// Writes the sublayer's output; its last product takes `x`.
void TrainingTransformer::State::end_sublayer(const LayerPass& pass, const Sublayer& sublayer,
                                              const TensorView& x, const TensorView& result) {
  const SublayerEnds& ends = pass.kept.*sublayer.ends;
  const bool normed = pass.has(sublayer.norm_after);
  kernels.linear(x, pass(sublayer.product), {}, normed ? ends.output : result);
  if (normed) {
    kernels.rms_norm(ends.output, pass(sublayer.norm_after), layer_plan.epsilon, result,
                     ends.output_inverse_rms);
  }
}

/// Leaves in `middle` the output alone: forward_mlp() adds the stream.
void TrainingTransformer::State::forward_attention(const LayerPass& pass,
                                                   const TensorView& lacking) {
  const LayerActivations& kept = pass.kept;
  const SublayerEnds& ends = kept.attention_ends;
  using enum LayerWeight;
  begin_sublayer(lacking, residual[pass.layer], pass(attention_norm), ends.input, ends.inverse_rms);
  project_heads(pass, q, q_bias, q_norm, kept.q);
  project_heads(pass, k, k_bias, k_norm, kept.k);
  kernels.linear(ends.input, pass(v), pass(v_bias), matrix(kept.v));
  kernels.rotary(kept.q.rotated, kept.k.rotated, plan->rows(), layer_plan.rope[pass.layer]);
  kernels.packed_attention(*plan, kept.q.rotated, kept.k.rotated, kept.v, kept.attention,
                           kept.log_sum_exp);
  end_sublayer(pass, kAttention, matrix(kept.attention), kept.middle);
}

/// Without end_mlp(), whose result checkpointing keeps.
void TrainingTransformer::State::forward_mlp(const LayerPass& pass) {
  const LayerActivations& kept = pass.kept;
  const SublayerEnds& ends = kept.feed_forward_ends;
  using enum LayerWeight;
  begin_sublayer(residual[pass.layer], kept.middle, pass(feed_forward_norm), ends.input,
                 ends.inverse_rms);
  kernels.linear(ends.input, pass(gate), {}, kept.gate);
  kernels.linear(ends.input, pass(up), {}, kept.up);
  kernels.swiglu(kept.gate, kept.up, kept.activated);
}

/// Backward of end_sublayer(), from the residual stream's gradient.
void TrainingTransformer::State::backward_sublayer_end(const LayerPass& pass,
                                                       const Sublayer& sublayer,
                                                       const TensorView& x,
                                                       const TensorView& x_gradient) {
  const SublayerEnds& ends = pass.kept.*sublayer.ends;
  const TensorView& output = gradient.output.empty() ? gradient.residual : gradient.output;
  if (pass.has(sublayer.norm_after)) {
    kernels.queue().zero(output);
    kernels.rms_norm_backward(gradient.residual, ends.output, pass(sublayer.norm_after),
                              ends.output_inverse_rms, output, pass.gradient(sublayer.norm_after));
  } else if (!gradient.output.empty()) {
    kernels.convert(gradient.residual, output);
  }
  backward_product(pass, sublayer.product, LayerWeight::none, output, x, x_gradient, false);
}

/// Adds the gradient of the sublayer's input to the residual stream's.
void TrainingTransformer::State::backward_sublayer_begin(const LayerPass& pass,
                                                         const Sublayer& sublayer,
                                                         const TensorView& stream) {
  if (pass.has(sublayer.norm_before)) {
    kernels.rms_norm_backward(gradient.input, stream, pass(sublayer.norm_before),
                              (pass.kept.*sublayer.ends).inverse_rms, gradient.residual,
                              pass.gradient(sublayer.norm_before));
  } else {
    kernels.add(gradient.input, gradient.residual);
  }
}

void TrainingTransformer::State::backward_mlp(const LayerPass& pass) {
  const LayerActivations& kept = pass.kept;
  const SublayerEnds& ends = kept.feed_forward_ends;
  backward_sublayer_end(pass, kFeedForward, kept.activated, gradient.activated);
  kernels.swiglu_backward(gradient.activated, kept.gate, kept.up, gradient.gate, gradient.up);
  using enum LayerWeight;
  backward_product(pass, gate, none, gradient.gate, ends.input, gradient.input, false);
  backward_product(pass, up, none, gradient.up, ends.input, gradient.input, true);
  backward_sublayer_begin(pass, kFeedForward, kept.middle);
}

void TrainingTransformer::State::backward_attention(const LayerPass& pass) {
  const LayerActivations& kept = pass.kept;
  const SublayerEnds& ends = kept.attention_ends;
  backward_sublayer_end(pass, kAttention, matrix(kept.attention), matrix(gradient.attention));
  kernels.packed_attention_backward(*plan, gradient.attention, kept.q.rotated, kept.k.rotated,
                                    kept.v, kept.attention, kept.log_sum_exp, gradient.q,
                                    gradient.k, gradient.v);
  kernels.rotary_backward(gradient.q, gradient.k, plan->rows(), layer_plan.rope[pass.layer]);
  // Reuses the memory of attention's gradient, which is used up.
  const auto before_norm = [&](const TensorView& normed_gradient, const Heads& heads,
                               LayerWeight norm) {
    if (!pass.has(norm)) {
      return normed_gradient;
    }
    const TensorView before(gradient.attention.raw(), compute, normed_gradient.shape(),
                            gradient.attention.device());
    kernels.queue().zero(before);
    kernels.rms_norm_backward(heads.rows(normed_gradient), heads.rows(heads.projected), pass(norm),
                              heads.inverse_rms, heads.rows(before), pass.gradient(norm));
    return before;
  };
  const auto projection = [&](const TensorView& heads_gradient, LayerWeight weight,
                              LayerWeight bias, bool accumulate) {
    backward_product(pass, weight, bias, matrix(heads_gradient), ends.input, gradient.input,
                     accumulate);
  };
  using enum LayerWeight;
  projection(before_norm(gradient.q, kept.q, q_norm), q, q_bias, false);
  projection(before_norm(gradient.k, kept.k, k_norm), k, k_bias, true);
  projection(gradient.v, v, v_bias, true);
  backward_sublayer_begin(pass, kAttention, residual[pass.layer]);
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
  const bool work = state.rows > 0;  // A rank without samples still borrows, for collectives.
  {
    const BorrowedGroup borrowed(parameters, state.table, model.embedding->group);
    if (work) {
      state.kernels.embedding(state.plan->rows(), borrowed(model.embedding), state.residual[0]);
      state.scale(state.residual[0], state.layer_plan.embedding_factor);
    }
  }
  // What the present residual does not hold yet: the next norm adds it in the same pass.
  TensorView lacking;
  for (std::size_t layer = 0; layer < model.layers.size(); ++layer) {
    const BorrowedGroup borrowed(parameters, state.table, model.layers[layer].group);
    if (work) {
      const LayerPass pass = state.layer_pass(layer, borrowed);
      state.forward_attention(pass, lacking);
      state.forward_mlp(pass);
      state.end_mlp(pass, state.residual[layer + 1]);
      lacking = pass.kept.middle;
    }
    note_progress();
  }
  const BorrowedGroup borrowed(parameters, state.table, model.final_norm->group);
  if (!work) {
    return {};
  }
  state.begin_sublayer(lacking, state.residual.back(), borrowed(model.final_norm), state.hidden,
                       state.final_inverse_rms);
  state.scale(state.hidden, state.layer_plan.hidden_factor);
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

  std::optional<OpenGradient> embedding;  // A tied head's is open throughout.
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
                                    gradient.input, (tied ? *embedding : head)(model.head));
      state.scale(gradient.input, state.layer_plan.hidden_factor);
      state.kernels.queue().zero(gradient.residual);
      state.kernels.rms_norm_backward(gradient.input, state.residual.back(),
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
      const LayerPass pass = state.layer_pass(layer, borrowed, &opened);
      if (state.options.activation_checkpointing) {
        state.forward_attention(pass, {});
        state.forward_mlp(pass);
        if (pass.has(kFeedForward.norm_after)) {
          state.end_mlp(pass, gradient.input);  // Only to recompute the ends; the result is unused.
        }
      }
      state.backward_mlp(pass);
      state.backward_attention(pass);
    }
    opened.ready();
    note_progress();
  }
  if (!tied) {
    embedding.emplace(gradients, state.table, model.embedding->group);
    embedding->clear(state.kernels.queue());
  }
  if (work) {
    state.scale(gradient.residual, state.layer_plan.embedding_factor);
    state.kernels.embedding_backward(*state.plan, gradient.residual, (*embedding)(model.embedding));
  }
  embedding->ready();
  note_progress();
}

double forward_flops(const LayerPlan& plan, const PackedBatch& batch) {
  double visible_keys = 0;
  for (const AttentionSegment& segment : batch.layout.segments) {
    const auto rows = static_cast<double>(segment.row_end - segment.row_begin);
    const auto prefix = static_cast<double>(segment.prefix_end - segment.prefix_begin);
    const auto before = static_cast<double>(segment.row_begin - segment.causal_begin);
    visible_keys += rows * (prefix + before) + rows * (rows + 1) / 2;
  }
  const auto rows = static_cast<double>(batch.layout.num_rows);
  return 2 * static_cast<double>(plan.num_layers()) *
         (rows * static_cast<double>(plan.elements(2)) +
          2 * visible_keys * static_cast<double>(plan.query));
}

double training_flops(const LayerPlan& plan, std::int64_t vocabulary, const PackedBatch& batch) {
  // A product's backward is two products of its size.
  constexpr double kForwardAndBackward = 3;
  double head_products = 0;
  for (const LossItem& item : batch.loss_items) {
    const bool has_target = item.target >= 0;
    const bool has_student = item.student_row >= 0;
    head_products += kForwardAndBackward * ((has_target ? 1 : 0) + (has_student ? 1 : 0));
    // A teacher without a target has no backward.
    head_products += item.teacher_row >= 0 || (has_student && !has_target) ? 1 : 0;
  }
  return kForwardAndBackward * forward_flops(plan, batch) +
         2 * head_products * static_cast<double>(plan.hidden) * static_cast<double>(vocabulary);
}

}  // namespace jforge
