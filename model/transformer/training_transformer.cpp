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

/// Returns part of a view that may be empty, of `all` rows or a multiple of that.
TensorView cut(const TensorView& view, const RowRange& rows, std::int64_t all) {
  if (view.empty()) {
    return view;
  }
  const std::int64_t multiple = view.dim(0) / all;
  return view.rows(rows.begin * multiple, rows.end * multiple);
}

/// Queries or keys and, if they are normed, what backward needs of that.
struct Heads {
  TensorView rotated;      ///< [T, heads, D] Attention's operand.
  TensorView projected;    ///< [T, heads, D] Before the norm.
  TensorView inverse_rms;  ///< [rows that are normed]

  [[nodiscard]] Heads of(const RowRange& range, std::int64_t all) const {
    return {cut(rotated, range, all), cut(projected, range, all), cut(inverse_rms, range, all)};
  }
  /// Returns `heads` [T, heads, D] as the rows that are normed.
  [[nodiscard]] TensorView rows(const TensorView& heads) const {
    const std::int64_t count = inverse_rms.dim(0);
    return heads.reshaped({count, heads.elements() / count});
  }
};

/// Fewer ranges are fewer products.
void join_adjacent(std::vector<RowRange>& ranges) {
  std::size_t last = 0;
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[last].end == ranges[i].begin) {
      ranges[last].end = ranges[i].end;
    } else {
      ranges[++last] = ranges[i];
    }
  }
  ranges.resize(std::min(ranges.size(), last + 1));
}

/// What backward needs of a sublayer's norms, either of which may be missing.
struct SublayerEnds {
  TensorView input;               ///< [T, C] After the norm before it.
  TensorView inverse_rms;         ///< [T]
  TensorView output;              ///< [T, C] Before the norm after it; empty without one.
  TensorView output_inverse_rms;  ///< [T]

  [[nodiscard]] SublayerEnds of(const RowRange& rows, std::int64_t all) const {
    return {cut(input, rows, all), cut(inverse_rms, rows, all), cut(output, rows, all),
            cut(output_inverse_rms, rows, all)};
  }
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

  [[nodiscard]] LayerActivations of(const RowRange& rows, std::int64_t all) const {
    const auto part = [&](const TensorView& view) { return cut(view, rows, all); };
    return {attention_ends.of(rows, all),
            q.of(rows, all),
            k.of(rows, all),
            part(v),
            part(attention),
            part(log_sum_exp),
            part(middle),
            feed_forward_ends.of(rows, all),
            part(gate),
            part(up),
            part(activated)};
  }
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

  [[nodiscard]] Gradients of(const RowRange& rows, std::int64_t all) const {
    const auto part = [&](const TensorView& view) { return cut(view, rows, all); };
    return {part(residual), part(output),    part(input), part(q),  part(k),
            part(v),        part(attention), part(gate),  part(up), part(activated)};
  }
};

/// Rows that propose() takes at once.
constexpr std::int64_t kProposalRows = 64;

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

/// An adapter's layer in a pass.
struct AdapterPass {
  const BorrowedGroup& borrowed;
  const AdapterParameters::Layer& entries;
  std::span<const RowRange> rows;  ///< That have the additions, of the rows of the pass.
  const OpenGradient* gradients = nullptr;

  [[nodiscard]] bool adds_to(LayerWeight weight) const { return entries.in[weight] != nullptr; }
};

/// A layer in a pass: its weights on loan, activations and, in backward, gradients; of all rows or,
/// with an adapter, of some.
struct LayerPass {
  std::size_t layer;
  const BorrowedGroup& borrowed;
  const LayerParameters& entries;
  LayerActivations kept;
  Gradients gradient_of;  ///< Of activations.
  const OpenGradient* gradients = nullptr;
  const AdapterPass* adapter = nullptr;
  TensorView unwanted = {};  ///< With an adapter: takes the gradient of any norm.

  [[nodiscard]] bool has(LayerWeight weight) const { return entries[weight] != nullptr; }
  /// This and gradient() return an empty view if layers have no such weight.
  [[nodiscard]] ConstTensorView operator()(LayerWeight weight) const {
    return borrowed(entries[weight]);
  }
  [[nodiscard]] TensorView gradient(LayerWeight weight) const {
    return gradients != nullptr ? (*gradients)(entries[weight])
                                : unwanted.rows(0, entries[weight]->shape.elements());
  }
};

/// The activations of a packed batch, in one block.
struct Activations {
  Activations(const TransformerConfig& config, TrainingTransformer::Options options)
      : layer_plan(config),
        compute(options.compute),
        forward_only(options.forward_only),
        adapter_rank(options.adapter ? options.adapter->rank : 0),
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
  std::int64_t adapter_rank;  ///< 0: no adapter.
  /// [L + 1] of [T, C]: layers' inputs, then the last output. With forward_only, two alternate.
  std::vector<TensorView> residual;
  std::vector<LayerActivations> activations;
  TensorView final_inverse_rms;  ///< [T]
  TensorView hidden;             ///< [T, C]
  Gradients gradient;
  TensorView low;       ///< [T, rank] Noisy rows on their way through an adapter.
  TensorView unwanted;  ///< LayerPass::unwanted
};

}  // namespace

struct TrainingTransformer::State : Activations {
  State(const TransformerConfig& model_config, const ParameterTable& model_table, KernelSet& set,
        MemoryAccount& memory, Options chosen)
      : Activations(model_config, chosen),
        table(model_table),
        parameters(model_config, table),
        adapter_table(chosen.adapter
                          ? std::optional<ParameterTable>(std::in_place, model_config,
                                                          *chosen.adapter, table.shard_count())
                          : std::nullopt),
        kernels(set),
        account(memory),
        options(chosen),
        plan(set.make_plan(layer_plan.heads, memory)) {
    if (adapter_table) {
      adapter_parameters.emplace(model_config, *chosen.adapter, *adapter_table);
    }
  }

  class BorrowedAdapter;

  void reserve(std::int64_t rows);
  void scale(const TensorView& x, float factor) {
    if (factor != 1.0F) {
      kernels.convert(x, x, factor);
    }
  }
  void check(const PackedBatch& batch) const;
  [[nodiscard]] LayerPass layer_pass(std::size_t layer, const BorrowedGroup& borrowed,
                                     const OpenGradient* gradients = nullptr) const {
    return {layer,
            borrowed,
            parameters.layers[layer],
            activations[keeps_one_layer(options) ? 0 : layer],
            gradient,
            gradients,
            nullptr,
            unwanted};
  }
  void project(const LayerPass& pass, LayerWeight weight, const ConstTensorView& bias,
               const TensorView& x, const TensorView& y);
  TensorView lower(const AdapterPass& adapter, LayerWeight weight, const TensorView& x,
                   std::int64_t first_row);
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
                        const TensorView& x_gradient, bool accumulate);
  void backward_sublayer_end(const LayerPass& pass, const Sublayer& sublayer, const TensorView& x,
                             const TensorView& x_gradient);
  void backward_sublayer_begin(const LayerPass& pass, const Sublayer& sublayer,
                               const TensorView& stream);
  void backward_mlp(const LayerPass& pass);
  void backward_attention_output(const LayerPass& pass) {
    backward_sublayer_end(pass, kAttention, matrix(pass.kept.attention),
                          matrix(pass.gradient_of.attention));
  }
  void backward_scores(const LayerPass& pass);
  void backward_projections(const LayerPass& pass, const PlannedRows& positions,
                            const TensorView& stream);
  void recompute(const LayerPass& pass);
  void backward_noisy_rows(const LayerPass& pass, const AdapterPass& adapter);

  const ParameterTable table;
  const ModelParameters parameters;
  const std::optional<ParameterTable> adapter_table;
  std::optional<AdapterParameters> adapter_parameters;
  KernelSet& kernels;
  MemoryAccount& account;
  const Options options;

  std::unique_ptr<PackedPlan> plan;  ///< Of the last forward()'s batch.
  Buffer buffer;
  std::int64_t rows = -1;       ///< Of the last forward(); −1 before the first.
  std::vector<RowRange> noisy;  ///< With an adapter, of the same.
  Buffer proposals;             ///< [kProposalRows] logits and tokens of propose().
};

/// An adapter's layer on loan, if there is an adapter.
class TrainingTransformer::State::BorrowedAdapter {
 public:
  BorrowedAdapter(const State& state, ParameterSource* adapter, std::size_t layer,
                  const OpenGradient* gradients = nullptr) {
    if (adapter != nullptr) {
      borrowed_.emplace(*adapter, *state.adapter_table, static_cast<std::int32_t>(layer));
      pass_.emplace(
          AdapterPass{*borrowed_, state.adapter_parameters->layers[layer], state.noisy, gradients});
    }
  }
  [[nodiscard]] const AdapterPass* pass() const { return pass_ ? &*pass_ : nullptr; }

 private:
  std::optional<BorrowedGroup> borrowed_;
  std::optional<AdapterPass> pass_;
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
  if (adapter_rank > 0) {
    low = take({num_rows, adapter_rank});
    unwanted = take_sums({std::max({layer_plan.hidden, layer_plan.query, layer_plan.key_value})});
  }
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

/// Returns scale · x · Aᵀ in `low`, of rows that begin at `first_row` of the batch.
TensorView TrainingTransformer::State::lower(const AdapterPass& adapter, LayerWeight weight,
                                             const TensorView& x, std::int64_t first_row) {
  const TensorView result = low.rows(first_row, first_row + x.dim(0));
  kernels.linear(x, adapter.borrowed(adapter.entries.in[weight]), {}, result);
  scale(result, options.adapter->scale());
  return result;
}

void TrainingTransformer::State::project(const LayerPass& pass, LayerWeight weight,
                                         const ConstTensorView& bias, const TensorView& x,
                                         const TensorView& y) {
  kernels.linear(x, pass(weight), bias, y);
  if (pass.adapter == nullptr || !pass.adapter->adds_to(weight)) {
    return;
  }
  for (const RowRange& range : pass.adapter->rows) {
    const TensorView lowered =
        lower(*pass.adapter, weight, x.rows(range.begin, range.end), range.begin);
    kernels.linear(lowered, pass.adapter->borrowed(pass.adapter->entries.out[weight]), {},
                   y.rows(range.begin, range.end), true);
  }
}

void TrainingTransformer::State::backward_product(const LayerPass& pass, LayerWeight weight,
                                                  LayerWeight bias, const TensorView& y_gradient,
                                                  const TensorView& x, const TensorView& x_gradient,
                                                  bool accumulate) {
  if (pass.adapter == nullptr) {
    kernels.linear_backward_weight(y_gradient, x, pass.gradient(weight),
                                   pass.has(bias) ? pass.gradient(bias) : TensorView(),
                                   pass.gradients->products_add());
  }
  kernels.linear_backward_input(y_gradient, pass(weight), x_gradient, accumulate);
  if (pass.adapter == nullptr || !pass.adapter->adds_to(weight)) {
    return;
  }
  const AdapterPass& adapter = *pass.adapter;
  const ParameterEntry* const in = adapter.entries.in[weight];
  const ParameterEntry* const out = adapter.entries.out[weight];
  const TensorView lowered = lower(adapter, weight, x, 0);
  kernels.linear_backward_weight(y_gradient, lowered, (*adapter.gradients)(out), {}, true);
  kernels.linear_backward_input(y_gradient, adapter.borrowed(out), lowered, false);
  scale(lowered, options.adapter->scale());
  kernels.linear_backward_weight(lowered, x, (*adapter.gradients)(in), {}, true);
  kernels.linear_backward_input(lowered, adapter.borrowed(in), x_gradient, true);
}

void TrainingTransformer::State::project_heads(const LayerPass& pass, LayerWeight weight,
                                               LayerWeight bias, LayerWeight norm,
                                               const Heads& heads) {
  const TensorView& projected = pass.has(norm) ? heads.projected : heads.rotated;
  project(pass, weight, pass(bias), pass.kept.attention_ends.input, matrix(projected));
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
  project(pass, sublayer.product, {}, x, normed ? ends.output : result);
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
  project(pass, v, pass(v_bias), ends.input, matrix(kept.v));
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
  project(pass, gate, {}, ends.input, kept.gate);
  project(pass, up, {}, ends.input, kept.up);
  kernels.swiglu(kept.gate, kept.up, kept.activated);
}

/// Backward of end_sublayer(), from the residual stream's gradient.
void TrainingTransformer::State::backward_sublayer_end(const LayerPass& pass,
                                                       const Sublayer& sublayer,
                                                       const TensorView& x,
                                                       const TensorView& x_gradient) {
  const SublayerEnds& ends = pass.kept.*sublayer.ends;
  const Gradients& own = pass.gradient_of;
  const TensorView& output = own.output.empty() ? own.residual : own.output;
  if (pass.has(sublayer.norm_after)) {
    kernels.queue().zero(output);
    kernels.rms_norm_backward(own.residual, ends.output, pass(sublayer.norm_after),
                              ends.output_inverse_rms, output, pass.gradient(sublayer.norm_after));
  } else if (!own.output.empty()) {
    kernels.convert(own.residual, output);
  }
  backward_product(pass, sublayer.product, LayerWeight::none, output, x, x_gradient, false);
}

/// Adds the gradient of the sublayer's input to the residual stream's.
void TrainingTransformer::State::backward_sublayer_begin(const LayerPass& pass,
                                                         const Sublayer& sublayer,
                                                         const TensorView& stream) {
  const Gradients& own = pass.gradient_of;
  if (pass.has(sublayer.norm_before)) {
    kernels.rms_norm_backward(own.input, stream, pass(sublayer.norm_before),
                              (pass.kept.*sublayer.ends).inverse_rms, own.residual,
                              pass.gradient(sublayer.norm_before));
  } else {
    kernels.add(own.input, own.residual);
  }
}

void TrainingTransformer::State::backward_mlp(const LayerPass& pass) {
  const LayerActivations& kept = pass.kept;
  const Gradients& own = pass.gradient_of;
  const SublayerEnds& ends = kept.feed_forward_ends;
  backward_sublayer_end(pass, kFeedForward, kept.activated, own.activated);
  kernels.swiglu_backward(own.activated, kept.gate, kept.up, own.gate, own.up);
  using enum LayerWeight;
  backward_product(pass, gate, none, own.gate, ends.input, own.input, false);
  backward_product(pass, up, none, own.up, ends.input, own.input, true);
  backward_sublayer_begin(pass, kFeedForward, kept.middle);
}

/// Attention takes all rows at once.
void TrainingTransformer::State::backward_scores(const LayerPass& pass) {
  const LayerActivations& kept = pass.kept;
  kernels.packed_attention_backward(*plan, gradient.attention, kept.q.rotated, kept.k.rotated,
                                    kept.v, kept.attention, kept.log_sum_exp, gradient.q,
                                    gradient.k, gradient.v);
}

void TrainingTransformer::State::backward_projections(const LayerPass& pass,
                                                      const PlannedRows& positions,
                                                      const TensorView& stream) {
  const SublayerEnds& ends = pass.kept.attention_ends;
  const Gradients& own = pass.gradient_of;
  kernels.rotary_backward(own.q, own.k, positions, layer_plan.rope[pass.layer]);
  // Reuses the memory of attention's gradient, which is used up.
  const auto before_norm = [&](const TensorView& normed_gradient, const Heads& heads,
                               LayerWeight norm) {
    if (!pass.has(norm)) {
      return normed_gradient;
    }
    const TensorView before(own.attention.raw(), compute, normed_gradient.shape(),
                            own.attention.device());
    kernels.queue().zero(before);
    kernels.rms_norm_backward(heads.rows(normed_gradient), heads.rows(heads.projected), pass(norm),
                              heads.inverse_rms, heads.rows(before), pass.gradient(norm));
    return before;
  };
  const auto projection = [&](const TensorView& heads_gradient, LayerWeight weight,
                              LayerWeight bias, bool accumulate) {
    backward_product(pass, weight, bias, matrix(heads_gradient), ends.input, own.input, accumulate);
  };
  using enum LayerWeight;
  projection(before_norm(own.q, pass.kept.q, q_norm), q, q_bias, false);
  projection(before_norm(own.k, pass.kept.k, k_norm), k, k_bias, true);
  projection(own.v, v, v_bias, true);
  backward_sublayer_begin(pass, kAttention, stream);
}

/// Makes again what checkpointing did not keep.
void TrainingTransformer::State::recompute(const LayerPass& pass) {
  if (!options.activation_checkpointing) {
    return;
  }
  forward_attention(pass, {});
  forward_mlp(pass);
  if (pass.has(kFeedForward.norm_after)) {
    end_mlp(pass, gradient.input);  // Only to recompute the ends; the result is unused.
  }
}

/// Clean rows get no gradient, and what attention would give them is unused.
void TrainingTransformer::State::backward_noisy_rows(const LayerPass& all,
                                                     const AdapterPass& adapter) {
  kernels.queue().zero(gradient.attention);
  const auto each_sample = [&](const auto& use) {
    for (const RowRange& range : noisy) {
      const RowRange own{0, range.end - range.begin};
      const AdapterPass part{adapter.borrowed, adapter.entries, {&own, 1}, adapter.gradients};
      LayerPass pass = all;
      pass.kept = all.kept.of(range, rows);
      pass.gradient_of = gradient.of(range, rows);
      pass.adapter = &part;
      use(pass, range);
    }
  };
  each_sample([&](const LayerPass& pass, const RowRange& /*range*/) {
    backward_mlp(pass);
    backward_attention_output(pass);
  });
  backward_scores(all);
  each_sample([&](const LayerPass& pass, const RowRange& range) {
    PlannedRows positions = plan->rows();
    positions.tokens = positions.tokens.rows(range.begin, range.end);
    positions.positions = positions.positions.rows(range.begin, range.end);
    backward_projections(pass, positions, residual[pass.layer].rows(range.begin, range.end));
  });
}

TrainingTransformer::TrainingTransformer(const TransformerConfig& config,
                                         const ParameterTable& table, KernelSet& kernels,
                                         MemoryAccount& account, const Options& options)
    : state_(std::make_unique<State>(config, table, kernels, account, options)) {
  expect(options.compute == DType::float32 || options.compute == DType::bfloat16,
         "training computes in float32 or bfloat16");
}

TrainingTransformer::~TrainingTransformer() = default;

std::size_t TrainingTransformer::bytes(const TransformerConfig& config, std::int64_t rows,
                                       const Options& options) {
  return Activations(config, options).bytes(rows);
}

ConstTensorView TrainingTransformer::forward(const PackedBatch& batch, ParameterSource& parameters,
                                             ParameterSource* adapter) {
  State& state = *state_;
  const ModelParameters& model = state.parameters;
  expect((adapter != nullptr) == state.options.adapter.has_value(),
         "an adapter's weights are lent to a transformer without one, or not to one with it");
  state.check(batch);
  if (adapter != nullptr) {
    find_noisy_rows(batch.layout, state.noisy);
    join_adjacent(state.noisy);
  }
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
    const State::BorrowedAdapter additions(state, adapter, layer);
    if (work) {
      LayerPass pass = state.layer_pass(layer, borrowed);
      pass.adapter = additions.pass();
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
      state.recompute(pass);
      state.backward_mlp(pass);
      state.backward_attention_output(pass);
      state.backward_scores(pass);
      state.backward_projections(pass, state.plan->rows(), state.residual[layer]);
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

void TrainingTransformer::loss_and_backward(ParameterSource& parameters, ParameterSource& adapter,
                                            const LossTerms& terms, GradientSink& gradients) {
  State& state = *state_;
  expect(state.options.adapter && !state.options.forward_only && state.rows >= 0,
         "loss_and_backward with an adapter comes after its forward()");
  const ModelParameters& model = state.parameters;
  Gradients& gradient = state.gradient;
  const bool work = state.rows > 0;
  {
    const BorrowedGroup norm(parameters, state.table, model.final_norm->group);
    const BorrowedGroup head(parameters, state.table, model.head->group);
    if (work) {
      state.kernels.vocabulary_loss(*state.plan, state.hidden, head(model.head), terms,
                                    gradient.input, {});
      state.scale(gradient.input, state.layer_plan.hidden_factor);
      state.kernels.queue().zero(gradient.residual);
      for (const RowRange& range : state.noisy) {
        const auto part = [&](const TensorView& view) { return view.rows(range.begin, range.end); };
        state.kernels.rms_norm_backward(part(gradient.input), part(state.residual.back()),
                                        norm(model.final_norm), part(state.final_inverse_rms),
                                        part(gradient.residual),
                                        state.unwanted.rows(0, state.layer_plan.hidden));
      }
    }
    note_progress();
  }
  for (std::size_t layer = model.layers.size(); layer-- > 0;) {
    const BorrowedGroup borrowed(parameters, state.table, model.layers[layer].group);
    const OpenGradient opened(gradients, *state.adapter_table, static_cast<std::int32_t>(layer));
    const State::BorrowedAdapter additions(state, &adapter, layer, &opened);
    opened.clear(state.kernels.queue());
    if (work) {
      LayerPass pass = state.layer_pass(layer, borrowed);
      pass.adapter = additions.pass();
      state.recompute(pass);
      state.backward_noisy_rows(pass, *pass.adapter);
    }
    opened.ready();
    note_progress();
  }
}

void TrainingTransformer::propose(ParameterSource& parameters, std::vector<TokenId>& next) {
  State& state = *state_;
  expect(state.options.adapter && state.rows >= 0, "propose() comes after an adapter's forward()");
  const ParameterEntry* const head = state.parameters.head;
  const BorrowedGroup borrowed(parameters, state.table, head->group);
  const std::int64_t vocabulary = head->shape[0];
  const std::int64_t logits_size = kProposalRows * vocabulary;
  if (state.proposals.bytes() == 0) {
    state.proposals = Buffer(storage_bytes(logits_size + kProposalRows, DType::float32),
                             state.account, state.kernels.device(), MemoryUse::activations);
  }
  const std::vector<SampledRow> greedy(kProposalRows);
  next.clear();
  for (const RowRange& range : state.noisy) {
    for (std::int64_t begin = range.begin; begin < range.end; begin += kProposalRows) {
      const std::int64_t rows = std::min(kProposalRows, range.end - begin);
      const TensorView logits = state.proposals.floats({rows, vocabulary});
      const TensorView chosen(state.proposals.data() + storage_bytes(logits_size, DType::float32),
                              DType::int32, {rows}, state.kernels.device());
      const auto count = static_cast<std::size_t>(rows);
      next.resize(next.size() + count);
      state.kernels.linear(state.hidden.rows(begin, begin + rows), borrowed(head), {}, logits);
      state.kernels.sample_tokens(logits, std::span(greedy).first(count), chosen);
      read_tokens(state.kernels, chosen, std::span(next).last(count));
    }
  }
}

double forward_flops(const LayerPlan& plan, const PackedBatch& batch, bool noisy_only) {
  double visible_keys = 0;
  double num_rows = 0;
  for (const AttentionSegment& segment : batch.layout.segments) {
    const auto rows = static_cast<double>(segment.row_end - segment.row_begin);
    const auto prefix = static_cast<double>(segment.prefix_end - segment.prefix_begin);
    if (noisy_only && prefix == 0) {
      continue;
    }
    num_rows += rows;
    const auto before = static_cast<double>(segment.row_begin - segment.causal_begin);
    visible_keys += rows * (prefix + before) + rows * (rows + 1) / 2;
  }
  return 2 * static_cast<double>(plan.num_layers()) *
         (num_rows * static_cast<double>(plan.elements(2)) +
          2 * visible_keys * static_cast<double>(plan.query));
}

double training_flops(const LayerPlan& plan, std::int64_t vocabulary, const PackedBatch& batch,
                      bool frozen) {
  // A product's backward is two products of its size; one if its weight is frozen.
  const double forward_and_backward = frozen ? 2 : 3;
  double head_products = 0;
  for (const LossItem& item : batch.loss_items) {
    const bool has_target = item.target >= 0;
    const bool has_student = item.student_row >= 0;
    head_products += forward_and_backward * ((has_target ? 1 : 0) + (has_student ? 1 : 0));
    // A teacher without a target has no backward.
    head_products += item.teacher_row >= 0 || (has_student && !has_target) ? 1 : 0;
  }
  const double layers = frozen ? forward_flops(plan, batch) + forward_flops(plan, batch, true)
                               : forward_and_backward * forward_flops(plan, batch);
  return layers +
         2 * head_products * static_cast<double>(plan.hidden) * static_cast<double>(vocabulary);
}

}  // namespace jforge
