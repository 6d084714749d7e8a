/// A head's passes (drafter.h). Clean rows give keys and values alone, made from the context;
/// noisy rows, which come last, pass the layers.

#include <algorithm>

#include "model/transformer/training_transformer.h"
#include "model/transformer/training_transformer_internal.h"
#include "runtime/phase_clock.h"

namespace jforge {
namespace {

const ParameterEntry& embedding_entry(const ParameterTable& model) {
  return model.entry("model.embed_tokens.weight");
}

/// The embedding if the head is tied.
const ParameterEntry& head_entry(const ParameterTable& model) {
  const auto found = std::ranges::find(model.entries(), "lm_head.weight", &ParameterEntry::name);
  return found == model.entries().end() ? embedding_entry(model) : *found;
}

TensorView rows_of(const TensorView& view, const RowRange& range) {
  return view.rows(range.begin, range.end);
}

}  // namespace

std::span<const TensorView> TrainingTransformer::features() const { return state_->features; }

void TrainingTransformer::State::make_context(const BorrowedGroup& borrowed,
                                              std::span<const TensorView> read) {
  const RowRange clean = head_rows().clean;
  const TensorView projected = rows_of(context.projected, clean);
  for (std::size_t i = 0; i < read.size(); ++i) {
    kernels.linear(rows_of(read[i], clean), borrowed(context_parameters->features[i]), {},
                   projected, i > 0);
  }
  kernels.rms_norm(projected, borrowed(context_parameters->norm), layer_plan.epsilon,
                   rows_of(context.normed, clean), rows_of(context.inverse_rms, clean));
}

void TrainingTransformer::State::backward_context(const BorrowedGroup& borrowed,
                                                  const OpenGradient& opened,
                                                  std::span<const TensorView> read) {
  const RowRange clean = head_rows().clean;
  // The layers' inputs are used up.
  const TensorView of_normed = rows_of(gradient.input, clean);
  const TensorView of_projected = rows_of(context.projected_gradient, clean);
  kernels.convert(rows_of(context.gradient, clean), of_normed);
  kernels.queue().zero(of_projected);
  kernels.rms_norm_backward(of_normed, rows_of(context.projected, clean),
                            borrowed(context_parameters->norm), rows_of(context.inverse_rms, clean),
                            of_projected, opened(context_parameters->norm));
  for (std::size_t i = 0; i < read.size(); ++i) {
    kernels.linear_backward_weight(of_projected, rows_of(read[i], clean),
                                   opened(context_parameters->features[i]), {},
                                   opened.products_add());
  }
}

void TrainingTransformer::State::forward_head_layer(const LayerPass& all,
                                                    const TensorView& lacking) {
  const auto [clean, own_rows] = head_rows();
  const LayerPass own = of_rows(all, own_rows);
  const SublayerEnds& ends = own.kept.attention_ends;
  const TensorView stream = rows_of(residual[all.layer], own_rows);
  using enum LayerWeight;
  begin_sublayer(lacking, stream, own(attention_norm), ends.input, ends.inverse_rms);
  kernels.convert(rows_of(context.normed, clean), rows_of(all.kept.attention_ends.input, clean));
  project_heads(own, q, q_bias, q_norm, own.kept.q);
  kernels.queue().zero(rows_of(all.kept.q.rotated, clean));  // Clean rows' attention is unused.
  project_heads(all, k, k_bias, k_norm, all.kept.k);
  project(all, v, all(v_bias), all.kept.attention_ends.input, as_matrix(all.kept.v));
  kernels.rotary(all.kept.q.rotated, all.kept.k.rotated, plan->rows(), layer_plan.rope[all.layer]);
  kernels.packed_attention(*plan, all.kept.q.rotated, all.kept.k.rotated, all.kept.v,
                           all.kept.attention, all.kept.log_sum_exp);
  end_sublayer(own, kAttentionSublayer, as_matrix(own.kept.attention), own.kept.middle);
  forward_mlp(own, stream);
}

void TrainingTransformer::State::backward_head_layer(const LayerPass& all) {
  const auto [clean, own_rows] = head_rows();
  const LayerPass own = of_rows(all, own_rows);
  const TensorView& of_input = all.gradient_of.input;
  backward_mlp(own);
  kernels.queue().zero(rows_of(all.gradient_of.attention, clean));
  backward_attention_output(own);
  backward_scores(all);
  kernels.rotary_backward(all.gradient_of.q, all.gradient_of.k, plan->rows(),
                          layer_plan.rope[all.layer]);
  const auto project_back = [&](const LayerPass& pass, const TensorView& of_heads,
                                LayerWeight weight, LayerWeight bias, bool accumulate) {
    backward_product(pass, weight, bias, as_matrix(of_heads), pass.kept.attention_ends.input,
                     pass.gradient_of.input, accumulate);
  };
  using enum LayerWeight;
  project_back(own, before_norm(own, own.gradient_of.q, own.kept.q, q_norm), q, q_bias, false);
  kernels.queue().zero(rows_of(of_input, clean));
  project_back(all, before_norm(all, all.gradient_of.k, all.kept.k, k_norm), k, k_bias, true);
  project_back(all, all.gradient_of.v, v, v_bias, true);
  kernels.add(rows_of(of_input, clean), rows_of(context.gradient, clean));
  backward_sublayer_begin(own, kAttentionSublayer, rows_of(residual[all.layer], own_rows));
}

ConstTensorView TrainingTransformer::forward_head(const PackedBatch& batch,
                                                  const FrozenForward& model,
                                                  ParameterSource& head) {
  State& state = *state_;
  expect(state.options.head && model.features.size() == state.options.head->features.size(),
         "forward_head() is for a head and its features");
  state.check(batch);
  find_noisy_rows(batch.layout, state.noisy);
  join_adjacent(state.noisy);
  state.plan->assign(batch);
  state.reserve(state.noisy.empty() ? 0 : batch.layout.num_rows);
  const bool work = state.rows > 0;  // Groups are borrowed without work, too.
  expect(!work || (state.noisy.size() == 1 && state.noisy[0].end == state.rows &&
                   model.hidden.dim(0) == state.noisy[0].begin),
         "a head's noisy rows are not the last, or the model's rows not the others");
  {
    const ParameterEntry& entry = embedding_entry(model.table);
    const BorrowedGroup embedding(model.parameters, model.table, entry.group);
    const BorrowedGroup features(head, state.table, state.context_parameters->norm->group);
    if (work) {
      const RowRange own = state.head_rows().noisy;
      state.kernels.embedding(state.planned(own), embedding(&entry),
                              rows_of(state.residual[0], own));
      state.make_context(features, model.features);
    }
  }
  TensorView lacking;
  for (std::size_t layer = 0; layer < state.parameters.layers.size(); ++layer) {
    const BorrowedGroup borrowed(head, state.table, state.parameters.layers[layer].group);
    if (work) {
      const RowRange own = state.head_rows().noisy;
      const LayerPass all = state.layer_pass(layer, borrowed);
      state.forward_head_layer(all, lacking);
      state.end_mlp(state.of_rows(all, own), rows_of(state.residual[layer + 1], own));
      lacking = rows_of(all.kept.middle, own);
    }
    note_progress();
  }
  const BorrowedGroup borrowed(head, state.table, state.parameters.final_norm->group);
  if (!work) {
    return {};
  }
  const auto [clean, own] = state.head_rows();
  state.kernels.queue().zero(rows_of(state.hidden, clean));
  state.begin_sublayer(lacking, rows_of(state.residual.back(), own),
                       borrowed(state.parameters.final_norm), rows_of(state.hidden, own),
                       rows_of(state.final_inverse_rms, own));
  return state.hidden;
}

void TrainingTransformer::loss_and_backward_head(const FrozenForward& model, ParameterSource& head,
                                                 const LossTerms& terms, GradientSink& gradients) {
  State& state = *state_;
  expect(state.options.head && !state.options.forward_only && state.rows >= 0,
         "loss_and_backward_head() comes after forward_head()");
  const ActivationGradients& gradient = state.gradient;
  Queue& queue = state.kernels.queue();
  const bool work = state.rows > 0;
  {
    const ParameterEntry& of_model = head_entry(model.table);
    const BorrowedGroup borrowed(head, state.table, state.parameters.final_norm->group);
    const BorrowedGroup logits(model.parameters, model.table, of_model.group);
    const OpenGradient opened(gradients, state.table, state.parameters.final_norm->group);
    opened.clear(queue);
    if (work) {
      const RowRange own = state.head_rows().noisy;
      LossTerms taught = terms;
      taught.teacher = {model.hidden, logits(&of_model)};
      state.kernels.vocabulary_loss(*state.plan, state.hidden, logits(&of_model), taught,
                                    gradient.input, {});
      queue.zero(gradient.residual);
      state.kernels.rms_norm_backward(
          rows_of(gradient.input, own), rows_of(state.residual.back(), own),
          borrowed(state.parameters.final_norm), rows_of(state.final_inverse_rms, own),
          rows_of(gradient.residual, own), opened(state.parameters.final_norm));
      queue.zero(state.context.gradient);
    }
    opened.ready();
    note_progress();
  }
  for (std::size_t layer = state.parameters.layers.size(); layer-- > 0;) {
    const std::int32_t group = state.parameters.layers[layer].group;
    const BorrowedGroup borrowed(head, state.table, group);
    const OpenGradient opened(gradients, state.table, group);
    if (work) {
      opened.clear_between_matrices(queue, state.table);
      const LayerPass all = state.layer_pass(layer, borrowed, &opened);
      if (state.options.activation_checkpointing) {
        state.forward_head_layer(all, {});
      }
      state.backward_head_layer(all);
    } else {
      opened.clear(queue);
    }
    opened.ready();
    note_progress();
  }
  const std::int32_t group = state.context_parameters->norm->group;
  const BorrowedGroup borrowed(head, state.table, group);
  const OpenGradient opened(gradients, state.table, group);
  if (work) {
    opened.clear_between_matrices(queue, state.table);
    state.backward_context(borrowed, opened, model.features);
  } else {
    opened.clear(queue);
  }
  opened.ready();
  note_progress();
}

}  // namespace jforge
