#pragma once

/// The table's entries resolved once, so that a step looks up no names.

#include <fmt/format.h>

#include <vector>

#include "model/transformer/parameter_table.h"
#include "model/transformer/transformer_config.h"

namespace jforge {

/// Tensor of `entry` inside a flat vector of the same table.
template <class View>
[[nodiscard]] View parameter_view(const View& flat, const ParameterEntry* entry) {
  return {flat.template data<float>() + entry->offset, DType::float32, entry->shape, flat.device()};
}

/// One layer's entries; they point into the table. What the model has not is null.
struct LayerParameters {
  const ParameterEntry* input_norm;
  const ParameterEntry* q_weight;
  const ParameterEntry* q_bias;
  const ParameterEntry* k_weight;
  const ParameterEntry* k_bias;
  const ParameterEntry* v_weight;
  const ParameterEntry* v_bias;
  const ParameterEntry* q_norm;  ///< [D], as k_norm.
  const ParameterEntry* k_norm;
  const ParameterEntry* o_weight;
  const ParameterEntry* attention_norm;
  const ParameterEntry* gate_weight;
  const ParameterEntry* up_weight;
  const ParameterEntry* down_weight;
  std::int32_t group;
};

/// All entries of a model. `table` must outlive it.
struct ModelParameters {
  ModelParameters(const TransformerConfig& config, const ParameterTable& table)
      : embedding(&table.entry("model.embed_tokens.weight")),
        final_norm(&table.entry("model.norm.weight")),
        head(config.tie_word_embeddings ? embedding : &table.entry("lm_head.weight")) {
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
      const auto find = [&](const char* suffix) {
        return &table.entry(fmt::format("model.layers.{}.{}", layer, suffix));
      };
      const auto bias = [&](const char* suffix) {
        return config.attention_bias() ? find(suffix) : nullptr;
      };
      const auto head_norm = [&](const char* suffix) {
        return config.query_key_norms() ? find(suffix) : nullptr;
      };
      const ParameterEntry* const input_norm = find("input_layernorm.weight");
      layers.push_back({input_norm, find("self_attn.q_proj.weight"), bias("self_attn.q_proj.bias"),
                        find("self_attn.k_proj.weight"), bias("self_attn.k_proj.bias"),
                        find("self_attn.v_proj.weight"), bias("self_attn.v_proj.bias"),
                        head_norm("self_attn.q_norm.weight"), head_norm("self_attn.k_norm.weight"),
                        find("self_attn.o_proj.weight"), find("post_attention_layernorm.weight"),
                        find("mlp.gate_proj.weight"), find("mlp.up_proj.weight"),
                        find("mlp.down_proj.weight"), input_norm->group});
    }
  }

  const ParameterEntry* embedding;
  const ParameterEntry* final_norm;
  const ParameterEntry* head;  ///< The embedding when the head is tied.
  std::vector<LayerParameters> layers;
};

}  // namespace jforge
