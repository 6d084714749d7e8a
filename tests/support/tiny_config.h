#pragma once

/// Dimensions of the tests' tiny model; a test that needs others changes only those.

#include "model/transformer/transformer_config.h"

namespace jforge::test {

/// No dimension is a multiple of a register's width; head groups hold three.
inline TransformerConfig tiny_config(bool tied = false, ModelFamily family = ModelFamily::qwen2) {
  TransformerConfig config;
  config.family = family;
  config.vocabulary_size = 37;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 3;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.max_position_embeddings = 512;
  if (family == ModelFamily::qwen3) {
    config.own_head_size = 6;
  } else if (family == ModelFamily::smollm3) {
    config.layers_without_rope = {1};
  } else if (family == ModelFamily::granite) {
    config.multipliers = {.embedding = 3, .attention = 0.4, .residual = 0.25, .logits = 1.5};
  }
  config.rope.theta = 10000.0;
  config.tie_word_embeddings = tied;
  config.eos_ids = {2};
  config.validate();
  return config;
}

}  // namespace jforge::test
