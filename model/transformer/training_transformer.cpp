#include "model/transformer/training_transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "model/transformer/training_transformer_internal.h"
#include "runtime/phase_clock.h"

namespace jforge {

void TrainingActivations::carve(Carver& carver, std::int64_t num_rows) {
  const AttentionHeads& heads = layer_plan.heads;
  const Shape stream{num_rows, layer_plan.hidden};
  const Shape query{num_rows, heads.heads, heads.size};
  const Shape key_value{num_rows, heads.key_heads, heads.size};
  const Shape wide{num_rows, layer_plan.wide};
  const auto take = [&](Shape shape) { return carver.take(compute, shape); };
  const auto take_sums = [&](Shape shape) { return carver.take(DType::float32, shape); };
  const auto take_heads = [&](LayerWeight norm, Shape shape) {
    const std::int64_t columns = layer_plan.elements(norm);
    return columns == 0
               ? KeptHeads{.rotated = take(shape), .projected = {}, .inverse_rms = {}}
               : KeptHeads{take(shape), take(shape), take_sums({shape.elements() / columns})};
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
    layer = {.attention_ends = take_ends(kAttentionSublayer),
             .q = take_heads(LayerWeight::q_norm, query),
             .k = take_heads(LayerWeight::k_norm, key_value),
             .v = take(key_value),
             .attention = take(query),
             .log_sum_exp = take_sums({num_rows, heads.heads}),
             .middle = take_sums(stream),
             .feed_forward_ends = take_ends(kFeedForwardSublayer),
             .gate = take(wide),
             .up = take(wide),
             .activated = take(wide)};
  }
  final_inverse_rms = take_sums({num_rows});
  hidden = take(stream);
  for (TensorView& feature : features) {
    feature = take(stream);
  }
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
  if (of_head) {
    context = {.projected = take(stream),
               .inverse_rms = take_sums({num_rows}),
               .normed = take(stream),
               .gradient = take_sums(stream),
               .projected_gradient = take(stream)};
  }
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
                                               const KeptHeads& heads) {
  const TensorView& projected = pass.has(norm) ? heads.projected : heads.rotated;
  project(pass, weight, pass(bias), pass.kept.attention_ends.input, as_matrix(projected));
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
  project(pass, v, pass(v_bias), ends.input, as_matrix(kept.v));
  kernels.rotary(kept.q.rotated, kept.k.rotated, plan->rows(), layer_plan.rope[pass.layer]);
  kernels.packed_attention(*plan, kept.q.rotated, kept.k.rotated, kept.v, kept.attention,
                           kept.log_sum_exp);
  end_sublayer(pass, kAttentionSublayer, as_matrix(kept.attention), kept.middle);
}

/// Without end_mlp(), whose result checkpointing keeps.
void TrainingTransformer::State::forward_mlp(const LayerPass& pass, const TensorView& lacking) {
  const LayerActivations& kept = pass.kept;
  const SublayerEnds& ends = kept.feed_forward_ends;
  using enum LayerWeight;
  begin_sublayer(lacking, kept.middle, pass(feed_forward_norm), ends.input, ends.inverse_rms);
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
  const ActivationGradients& own = pass.gradient_of;
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
  const ActivationGradients& own = pass.gradient_of;
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
  const ActivationGradients& own = pass.gradient_of;
  const SublayerEnds& ends = kept.feed_forward_ends;
  backward_sublayer_end(pass, kFeedForwardSublayer, kept.activated, own.activated);
  kernels.swiglu_backward(own.activated, kept.gate, kept.up, own.gate, own.up);
  using enum LayerWeight;
  backward_product(pass, gate, none, own.gate, ends.input, own.input, false);
  backward_product(pass, up, none, own.up, ends.input, own.input, true);
  backward_sublayer_begin(pass, kFeedForwardSublayer, kept.middle);
}

/// Attention takes all rows at once.
void TrainingTransformer::State::backward_scores(const LayerPass& pass) {
  const LayerActivations& kept = pass.kept;
  kernels.packed_attention_backward(*plan, gradient.attention, kept.q.rotated, kept.k.rotated,
                                    kept.v, kept.attention, kept.log_sum_exp, gradient.q,
                                    gradient.k, gradient.v);
}

/// Backward of a norm of heads. Reuses the memory of attention's gradient, which is used up.
TensorView TrainingTransformer::State::before_norm(const LayerPass& pass,
                                                   const TensorView& normed_gradient,
                                                   const KeptHeads& heads, LayerWeight norm) {
  if (!pass.has(norm)) {
    return normed_gradient;
  }
  const TensorView& used = pass.gradient_of.attention;
  const TensorView before(used.raw(), compute, normed_gradient.shape(), used.device());
  kernels.queue().zero(before);
  kernels.rms_norm_backward(heads.rows(normed_gradient), heads.rows(heads.projected), pass(norm),
                            heads.inverse_rms, heads.rows(before), pass.gradient(norm));
  return before;
}

void TrainingTransformer::State::backward_projections(const LayerPass& pass,
                                                      const PlannedRows& positions,
                                                      const TensorView& stream) {
  const SublayerEnds& ends = pass.kept.attention_ends;
  const ActivationGradients& own = pass.gradient_of;
  kernels.rotary_backward(own.q, own.k, positions, layer_plan.rope[pass.layer]);
  const auto projection = [&](const TensorView& heads_gradient, LayerWeight weight,
                              LayerWeight bias, bool accumulate) {
    backward_product(pass, weight, bias, as_matrix(heads_gradient), ends.input, own.input,
                     accumulate);
  };
  using enum LayerWeight;
  projection(before_norm(pass, own.q, pass.kept.q, q_norm), q, q_bias, false);
  projection(before_norm(pass, own.k, pass.kept.k, k_norm), k, k_bias, true);
  projection(own.v, v, v_bias, true);
  backward_sublayer_begin(pass, kAttentionSublayer, stream);
}

/// Makes again what checkpointing did not keep.
void TrainingTransformer::State::recompute(const LayerPass& pass) {
  if (!options.activation_checkpointing) {
    return;
  }
  forward_attention(pass, {});
  forward_mlp(pass, residual[pass.layer]);
  if (pass.has(kFeedForwardSublayer.norm_after)) {
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
      LayerPass pass = of_rows(all, range);
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
    backward_projections(pass, planned(range), residual[pass.layer].rows(range.begin, range.end));
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
  return TrainingActivations(config, options).bytes(rows);
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
      state.keep_feature(layer);
      state.forward_mlp(pass, state.residual[layer]);
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
  ActivationGradients& gradient = state.gradient;
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
  ActivationGradients& gradient = state.gradient;
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
