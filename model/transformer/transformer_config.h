#pragma once

/// Dimensions of a model, as config.json of a Hugging Face directory gives them.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/kernels/rotary_settings.h"
#include "runtime/ids.h"

namespace jforge {

/// Model families that share one forward pass and differ only in these options.
enum class ModelFamily : std::uint8_t {
  qwen2,    ///< Qwen2, Qwen2.5: query, key and value projections have a bias.
  llama,    ///< Llama 2 and 3, SmolLM2, TinyLlama: no biases.
  mistral,  ///< Mistral without a sliding window: no biases.
  qwen3,    ///< Qwen3, dense: no biases; queries and keys are normed head by head.
  smollm3,  ///< SmolLM3: no biases; some layers have no rotary embedding (NoPE).
  olmo2,    ///< OLMo 2: no biases; norms after attention and feed-forward, and of all queries and
            ///< of all keys of a token.
  granite,  ///< Granite 3, dense: no biases; multipliers.
};

/// Which rows of queries and keys pass an RMS norm before they are rotated.
enum class QueryKeyNorm : std::uint8_t {
  none,
  heads,        ///< Each head, by one weight [D] for all heads of a layer.
  projections,  ///< All heads of a token together, by a weight [H · D], for keys [Hkv · D].
};

/// Granite's factors.
struct Multipliers {
  double embedding = 1;  ///< Of embeddings.
  double attention = 0;  ///< Of attention scores; 0: 1 / √D.
  double residual = 1;   ///< Of what each sublayer adds to the residual stream.
  double logits = 1;     ///< Logits are divided by it.
  bool operator==(const Multipliers&) const = default;
};
/// All of them by their names in config.json; `transformers` takes 1 for an absent one.
struct NamedMultiplier {
  const char* key;
  double Multipliers::*value;
};
inline constexpr NamedMultiplier kMultipliers[] = {
    {"embedding_multiplier", &Multipliers::embedding},
    {"attention_multiplier", &Multipliers::attention},
    {"residual_multiplier", &Multipliers::residual},
    {"logits_scaling", &Multipliers::logits}};

/// What is particular to a family: its names in config.json, what its layers have, and what
/// `transformers` takes for a key that the file lacks. A family of the same layers is one row.
struct FamilyTraits {
  ModelFamily family;
  const char* model_type;
  const char* architecture;
  bool attention_bias = false;  ///< Query, key and value projections have a bias.
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  bool multipliers = false;  ///< config.json has kMultipliers.
  bool norms_after = false;  ///< RMS norms come after attention and feed-forward, not before.
  bool some_layers_without_rope = false;       ///< no_rope_layers, or no_rope_layer_interval.
  bool needs_kv_heads = false;                 ///< num_key_value_heads may be null but not absent.
  bool tied_embeddings = false;                ///< tie_word_embeddings
  std::optional<double> rope_theta = {};       ///< Nothing: must be there.
  std::optional<std::int64_t> head_size = {};  ///< head_dim. Nothing: C / H.
  std::optional<std::int64_t> window = {};     ///< sliding_window. Nothing: the key has no effect.
};
/// All families.
[[nodiscard]] std::span<const FamilyTraits> family_traits();
[[nodiscard]] const FamilyTraits& traits_of(ModelFamily family);

/// Legend: V vocabulary, C hidden size, F intermediate size, H query heads, Hkv key/value heads, D
/// head size, L layers.
struct TransformerConfig {
  ModelFamily family = ModelFamily::qwen2;
  std::int64_t vocabulary_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  /// D where the model says its own; else C / H, which must be whole. Never both the same, so that
  /// equal models compare equal.
  std::optional<std::int64_t> own_head_size = {};
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  RotarySettings rope = {};
  Multipliers multipliers = {};
  /// Layers whose queries and keys are not rotated: 0-based, ascending.
  std::vector<std::int64_t> layers_without_rope = {};
  bool tie_word_embeddings = false;
  /// End-of-sequence ids: generation_config.json's list, else config.json's. Empty when the model
  /// names none.
  std::vector<TokenId> eos_ids;

  [[nodiscard]] std::int64_t head_size() const {
    return own_head_size.value_or(hidden_size / num_heads);
  }
  /// Throws DataError naming the field when the dimensions do not fit together.
  void validate() const;

  bool operator==(const TransformerConfig&) const = default;
};

}  // namespace jforge
