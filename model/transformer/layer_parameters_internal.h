#pragma once

/// The table's entries by LayerWeight, so that a step looks up no names.

#include <vector>

#include "model/transformer/layer_plan.h"
#include "model/transformer/parameter_table.h"

namespace jforge {

template <class View>
[[nodiscard]] View parameter_view(const View& flat, const ParameterEntry* entry) {
  return {flat.template data<float>() + entry->offset, DType::float32, entry->shape, flat.device()};
}

/// One layer's entries in the table; null for weights that layers do not have.
struct LayerParameters : PerLayerWeight<const ParameterEntry*> {
  std::int32_t group = 0;
};

/// Requires: `table` outlives it.
struct ModelParameters {
  ModelParameters(const TransformerConfig& config, const ParameterTable& table)
      : embedding(&table.entry("model.embed_tokens.weight")),
        final_norm(&table.entry("model.norm.weight")),
        head(config.tie_word_embeddings ? embedding : &table.entry("lm_head.weight")) {
    const LayerPlan plan(config);
    for (std::int64_t layer = 0; layer < plan.num_layers(); ++layer) {
      LayerParameters& found = layers.emplace_back();
      for (const PlannedWeight& planned : plan.weights) {
        found[planned.weight] = &table.entry(planned.name_in(layer));
        found.group = found[planned.weight]->group;
      }
    }
  }

  const ParameterEntry* embedding;
  const ParameterEntry* final_norm;
  const ParameterEntry* head;  ///< The embedding when the head is tied.
  std::vector<LayerParameters> layers;
};

}  // namespace jforge
