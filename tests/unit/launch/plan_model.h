#pragma once

#include "model/transformer/transformer_config.h"

namespace jforge::test {

inline TransformerConfig plan_model() {
  TransformerConfig config;
  config.vocabulary_size = 1000;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.max_position_embeddings = 512;
  return config;
}

}  // namespace jforge::test
