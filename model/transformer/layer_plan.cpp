#include "model/transformer/layer_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace jforge {

std::string PlannedWeight::name_in(std::int64_t layer) const {
  return fmt::format("model.layers.{}.{}", layer, name);
}

LayerPlan::LayerPlan(const TransformerConfig& config)
    : hidden(config.hidden_size),
      wide(config.intermediate_size),
      heads{
          .heads = config.num_heads, .key_heads = config.num_kv_heads, .size = config.head_size()},
      query(heads.heads * heads.size),
      key_value(heads.key_heads * heads.size),
      epsilon(static_cast<float>(config.rms_norm_eps)),
      stream_epsilon(
          static_cast<float>(config.rms_norm_eps / std::pow(config.multipliers.residual, 2))),
      embedding_factor(
          static_cast<float>(config.multipliers.embedding / config.multipliers.residual)),
      hidden_factor(static_cast<float>(1 / config.multipliers.logits)),
      rope(static_cast<std::size_t>(config.num_layers), config.rope) {
  for (const std::int64_t layer : config.layers_without_rope) {
    rope[static_cast<std::size_t>(layer)] = {.scaling = RotaryScaling::off};
  }
  if (const double attention = config.multipliers.attention; attention != 0) {
    for (RotarySettings& one : rope) {  // Scales queries and keys; kernels multiply by 1 / √D.
      one.scale = std::sqrt(attention * std::sqrt(static_cast<double>(heads.size)));
    }
  }
  const FamilyTraits& family = traits_of(config.family);
  const auto add = [this](bool present, LayerWeight weight, const char* name, Shape shape) {
    if (present) {
      weights.push_back({weight, name, shape});
    }
  };
  using enum LayerWeight;
  const bool after = family.norms_after;
  const bool query_key_norms = family.query_key_norm != QueryKeyNorm::none;
  const bool by_head = family.query_key_norm == QueryKeyNorm::heads;
  add(!after, attention_norm, "input_layernorm.weight", {hidden});
  add(true, q, "self_attn.q_proj.weight", {query, hidden});
  add(family.attention_bias, q_bias, "self_attn.q_proj.bias", {query});
  add(true, k, "self_attn.k_proj.weight", {key_value, hidden});
  add(family.attention_bias, k_bias, "self_attn.k_proj.bias", {key_value});
  add(true, v, "self_attn.v_proj.weight", {key_value, hidden});
  add(family.attention_bias, v_bias, "self_attn.v_proj.bias", {key_value});
  add(query_key_norms, q_norm, "self_attn.q_norm.weight", {by_head ? heads.size : query});
  add(query_key_norms, k_norm, "self_attn.k_norm.weight", {by_head ? heads.size : key_value});
  add(true, o, "self_attn.o_proj.weight", {hidden, query});
  add(after, attention_output_norm, "post_attention_layernorm.weight", {hidden});
  add(!after, feed_forward_norm, "post_attention_layernorm.weight", {hidden});
  add(true, gate, "mlp.gate_proj.weight", {wide, hidden});
  add(true, up, "mlp.up_proj.weight", {wide, hidden});
  add(true, down, "mlp.down_proj.weight", {hidden, wide});
  add(after, feed_forward_output_norm, "post_feedforward_layernorm.weight", {hidden});
}

std::int64_t LayerPlan::elements(int rank) const {
  std::int64_t sum = 0;
  for (const PlannedWeight& weight : weights) {
    sum += weight.shape.rank() == rank ? weight.shape.elements() : 0;
  }
  return sum;
}

std::int64_t LayerPlan::elements(LayerWeight weight) const {
  const auto found = std::ranges::find(weights, weight, &PlannedWeight::weight);
  return found == weights.end() ? 0 : found->shape.elements();
}

}  // namespace jforge
