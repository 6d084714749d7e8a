#pragma once

/// The state of a TrainingTransformer, for its parts in this folder: a model's and an adapter's
/// passes (training_transformer.cpp) and a head's (training_head.cpp).

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "model/transformer/layer_parameters_internal.h"
#include "model/transformer/training_transformer.h"
#include "runtime/tensor/buffer.h"

namespace jforge {

/// Returns part of a view that may be empty, of `all` rows or a multiple of that.
inline TensorView part_of(const TensorView& view, const RowRange& rows, std::int64_t all) {
  if (view.empty()) {
    return view;
  }
  const std::int64_t multiple = view.dim(0) / all;
  return view.rows(rows.begin * multiple, rows.end * multiple);
}

/// Queries or keys and, if they are normed, what backward needs of that.
struct KeptHeads {
  TensorView rotated;      ///< [T, heads, D] Attention's operand.
  TensorView projected;    ///< [T, heads, D] Before the norm.
  TensorView inverse_rms;  ///< [rows that are normed]

  [[nodiscard]] KeptHeads of(const RowRange& range, std::int64_t all) const {
    return {part_of(rotated, range, all), part_of(projected, range, all),
            part_of(inverse_rms, range, all)};
  }
  /// Returns `heads` [T, heads, D] as the rows that are normed.
  [[nodiscard]] TensorView rows(const TensorView& heads) const {
    const std::int64_t count = inverse_rms.dim(0);
    return heads.reshaped({count, heads.elements() / count});
  }
};

/// Fewer ranges are fewer products.
inline void join_adjacent(std::vector<RowRange>& ranges) {
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
    return {part_of(input, rows, all), part_of(inverse_rms, rows, all), part_of(output, rows, all),
            part_of(output_inverse_rms, rows, all)};
  }
};

/// What backward needs of a layer besides its input and output, in the compute type; inverse RMS,
/// log-sums and the residual stream are float32.
struct LayerActivations {
  SublayerEnds attention_ends;
  KeptHeads q, k;
  TensorView v;            ///< [T, Hkv, D]
  TensorView attention;    ///< [T, H, D]
  TensorView log_sum_exp;  ///< [T, H]
  TensorView middle;       ///< [T, C] Residual stream after attention.
  SublayerEnds feed_forward_ends;
  TensorView gate, up, activated;  ///< [T, F]

  [[nodiscard]] LayerActivations of(const RowRange& rows, std::int64_t all) const {
    const auto part = [&](const TensorView& view) { return part_of(view, rows, all); };
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
struct ActivationGradients {
  TensorView residual;   ///< [T, C] float32
  TensorView output;     ///< [T, C] Of a sublayer's last product; empty if `residual` is that.
  TensorView input;      ///< [T, C] Of a sublayer's input.
  TensorView q;          ///< [T, H, D]
  TensorView k, v;       ///< [T, Hkv, D]
  TensorView attention;  ///< [T, H, D]
  TensorView gate, up, activated;  ///< [T, F]

  [[nodiscard]] ActivationGradients of(const RowRange& rows, std::int64_t all) const {
    const auto part = [&](const TensorView& view) { return part_of(view, rows, all); };
    return {part(residual), part(output),    part(input), part(q),  part(k),
            part(v),        part(attention), part(gate),  part(up), part(activated)};
  }
};

/// Rows that propose() takes at once.
inline constexpr std::int64_t kProposalRows = 64;

/// A sublayer adds norm_after(product(… norm_before(stream))) to the residual stream.
struct Sublayer {
  SublayerEnds LayerActivations::*ends;
  LayerWeight norm_before;
  LayerWeight product;
  LayerWeight norm_after;
};
inline constexpr Sublayer kAttentionSublayer{&LayerActivations::attention_ends,
                                             LayerWeight::attention_norm, LayerWeight::o,
                                             LayerWeight::attention_output_norm};
inline constexpr Sublayer kFeedForwardSublayer{&LayerActivations::feed_forward_ends,
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

inline TensorView as_matrix(const TensorView& heads) {
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
  ActivationGradients gradient_of;  ///< Of activations.
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
struct TrainingActivations {
  TrainingActivations(const TransformerConfig& config, TrainingTransformer::Options options)
      : layer_plan(config),
        compute(options.compute),
        forward_only(options.forward_only),
        adapter_rank(options.adapter ? options.adapter->rank : 0),
        of_head(options.head.has_value()),
        features(options.features.size()),
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
  bool of_head;
  std::vector<TensorView> features;  ///< [T, C] TrainingTransformer::features()
  /// [L + 1] of [T, C]: layers' inputs, then the last output. With forward_only, two alternate.
  std::vector<TensorView> residual;
  std::vector<LayerActivations> activations;
  TensorView final_inverse_rms;  ///< [T]
  TensorView hidden;             ///< [T, C]
  ActivationGradients gradient;
  TensorView low;       ///< [T, rank] Noisy rows on their way through an adapter.
  TensorView unwanted;  ///< LayerPass::unwanted
  /// A head has it, [T, C]; only the clean rows are used.
  struct Context {
    TensorView projected;    ///< Before the norm.
    TensorView inverse_rms;  ///< [T]
    TensorView normed;
    TensorView gradient;            ///< float32
    TensorView projected_gradient;  ///< Of the compute type.
  } context;
};

struct TrainingTransformer::State : TrainingActivations {
  State(const TransformerConfig& model_config, const ParameterTable& model_table, KernelSet& set,
        MemoryAccount& memory, Options chosen)
      : TrainingActivations(model_config, chosen),
        table(model_table),
        vocabulary(model_config.vocabulary_size),
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
    if (chosen.head) {
      context_parameters.emplace(*chosen.head, table);
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
  /// Keeps the stream after the layer before `layer`, which is complete once the next adds to it.
  void keep_feature(std::size_t layer) {
    for (std::size_t i = 0; i < features.size(); ++i) {
      if (std::cmp_equal(options.features[i] + 1, layer)) {
        kernels.convert(residual[layer], features[i]);
      }
    }
  }
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
                     const KeptHeads& heads);
  void begin_sublayer(const TensorView& lacking, const TensorView& stream,
                      const ConstTensorView& norm, const TensorView& input,
                      const TensorView& inverse_rms);
  void end_sublayer(const LayerPass& pass, const Sublayer& sublayer, const TensorView& x,
                    const TensorView& result);
  void forward_attention(const LayerPass& pass, const TensorView& lacking);
  void forward_mlp(const LayerPass& pass, const TensorView& lacking);
  void end_mlp(const LayerPass& pass, const TensorView& result) {
    end_sublayer(pass, kFeedForwardSublayer, pass.kept.activated, result);
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
    backward_sublayer_end(pass, kAttentionSublayer, as_matrix(pass.kept.attention),
                          as_matrix(pass.gradient_of.attention));
  }
  void backward_scores(const LayerPass& pass);
  [[nodiscard]] TensorView before_norm(const LayerPass& pass, const TensorView& normed_gradient,
                                       const KeptHeads& heads, LayerWeight norm);
  void backward_projections(const LayerPass& pass, const PlannedRows& positions,
                            const TensorView& stream);
  void recompute(const LayerPass& pass);
  void backward_noisy_rows(const LayerPass& pass, const AdapterPass& adapter);
  // For a head:
  struct HeadRows {
    RowRange clean, noisy;
  };
  [[nodiscard]] HeadRows head_rows() const {
    return {{0, noisy.front().begin}, {noisy.front().begin, rows}};
  }
  [[nodiscard]] LayerPass of_rows(const LayerPass& all, const RowRange& range) const {
    LayerPass pass = all;
    pass.kept = all.kept.of(range, rows);
    pass.gradient_of = gradient.of(range, rows);
    return pass;
  }
  [[nodiscard]] PlannedRows planned(const RowRange& range) const {
    PlannedRows some = plan->rows();
    some.tokens = some.tokens.rows(range.begin, range.end);
    some.positions = some.positions.rows(range.begin, range.end);
    return some;
  }
  void make_context(const BorrowedGroup& borrowed, std::span<const TensorView> read);
  void backward_context(const BorrowedGroup& borrowed, const OpenGradient& opened,
                        std::span<const TensorView> read);
  void forward_head_layer(const LayerPass& all, const TensorView& lacking);
  void backward_head_layer(const LayerPass& all);

  const ParameterTable table;
  const std::int64_t vocabulary;
  const ModelParameters parameters;
  const std::optional<ParameterTable> adapter_table;
  std::optional<AdapterParameters> adapter_parameters;
  std::optional<ContextParameters> context_parameters;
  KernelSet& kernels;
  MemoryAccount& account;
  const Options options;

  std::unique_ptr<PackedPlan> plan;  ///< Of the last forward()'s batch.
  Buffer buffer;
  std::int64_t rows = -1;       ///< Of the last forward(); −1 before the first.
  std::vector<RowRange> noisy;  ///< With a drafter, of the same.
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

}  // namespace jforge
