#pragma once

/// The table's entries by LayerWeight, so that a step looks up no names.

#include <algorithm>
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

/// Requires: `table` outlives it. Of a drafter's head, config is head_config()'s, and `embedding`
/// and `head` are null.
struct ModelParameters {
  ModelParameters(const TransformerConfig& config, const ParameterTable& table)
      : embedding(table.kind() == ParameterTable::Kind::head
                      ? nullptr
                      : &table.entry("model.embed_tokens.weight")),
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

/// The same of an adapter; A and B are null for weights without an addition.
struct AdapterParameters {
  struct Layer {
    PerLayerWeight<const ParameterEntry*> in;   ///< A
    PerLayerWeight<const ParameterEntry*> out;  ///< B
  };
  AdapterParameters(const TransformerConfig& config, const AdapterShape& shape,
                    const ParameterTable& table) {
    const LayerPlan plan(config);
    for (std::int64_t layer = 0; layer < plan.num_layers(); ++layer) {
      Layer& found = layers.emplace_back();
      for (const PlannedWeight& planned : plan.weights) {
        if (std::ranges::find(shape.targets, planned.weight) != shape.targets.end()) {
          found.in[planned.weight] = &table.entry(adapter_in(planned, layer));
          found.out[planned.weight] = &table.entry(adapter_out(planned, layer));
        }
      }
    }
  }

  std::vector<Layer> layers;  ///< Layer i is group i.
};

/// A head's context; group 0.
struct ContextParameters {
  ContextParameters(const HeadShape& shape, const ParameterTable& table)
      : norm(&table.entry(kContextNorm)) {
    for (std::size_t i = 0; i < shape.features.size(); ++i) {
      features.push_back(&table.entry(head_feature(i)));
    }
  }

  std::vector<const ParameterEntry*> features;
  const ParameterEntry* norm;
};

}  // namespace jforge
