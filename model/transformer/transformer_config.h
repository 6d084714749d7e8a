#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/kernels/rotary_settings.h"
#include "runtime/ids.h"

namespace jforge {

/// Model families that share one forward pass.
enum class ModelFamily : std::uint8_t {
  qwen2,  ///< Also Qwen2.5.
  llama,  ///< Llama 2 and 3, SmolLM2, TinyLlama.
  mistral,
  qwen3,
  smollm3,
  olmo2,
  granite,
};

/// Which RMS norm queries and keys pass before they are rotated.
enum class QueryKeyNorm : std::uint8_t {
  none,
  heads,        ///< Head by head, by a weight [D].
  projections,  ///< Over all heads, by a weight [H · D] or [Hkv · D].
};

struct Multipliers {
  double embedding = 1;
  double attention = 0;  ///< Of attention scores; 0: 1 / √D.
  double residual = 1;   ///< Of each sublayer's output.
  double logits = 1;     ///< Logits are divided by it.
  bool operator==(const Multipliers&) const = default;
};
struct NamedMultiplier {
  const char* key;  ///< In config.json; `transformers` takes 1 if it is absent.
  double Multipliers::*value;
};
inline constexpr NamedMultiplier kMultipliers[] = {
    {"embedding_multiplier", &Multipliers::embedding},
    {"attention_multiplier", &Multipliers::attention},
    {"residual_multiplier", &Multipliers::residual},
    {"logits_scaling", &Multipliers::logits}};

/// A family's names in config.json, its kinds of layers, and what `transformers` takes for absent
/// keys.
struct FamilyTraits {
  ModelFamily family;
  const char* model_type;
  const char* architecture;
  bool attention_bias = false;  ///< Of query, key and value projections.
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  bool norms_after = false;  ///< RMS norms come after attention and feed-forward, not before.
  std::span<const NamedMultiplier> multipliers = {};  ///< That config.json has.
  bool some_layers_without_rope = false;              ///< no_rope_layers or no_rope_layer_interval.
  bool needs_kv_heads = false;                 ///< num_key_value_heads may be null, not absent.
  bool tied_embeddings = false;                ///< tie_word_embeddings
  std::optional<double> rope_theta = {};       ///< Nothing: required.
  std::optional<std::int64_t> head_size = {};  ///< head_dim. Nothing: C / H.
  std::optional<std::int64_t> window = {};     ///< sliding_window. Nothing: it has no effect.
};
[[nodiscard]] std::span<const FamilyTraits> family_traits();
[[nodiscard]] const FamilyTraits& traits_of(ModelFamily family);

/// Comments name its values V, C, F, L, H, Hkv, in this order, and D for the head size.
struct TransformerConfig {
  ModelFamily family = ModelFamily::qwen2;
  std::int64_t vocabulary_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  /// Set only if D is not C / H, so that equal models compare equal.
  std::optional<std::int64_t> own_head_size = {};
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  RotarySettings rope = {};
  Multipliers multipliers = {};
  /// 0-based, ascending.
  std::vector<std::int64_t> layers_without_rope = {};
  bool tie_word_embeddings = false;
  /// generation_config.json's list, else config.json's.
  std::vector<TokenId> eos_ids;

  [[nodiscard]] std::int64_t head_size() const {
    return own_head_size.value_or(hidden_size / num_heads);
  }
  /// Throws DataError naming the field if a value is invalid.
  void validate() const;

  bool operator==(const TransformerConfig&) const = default;
};

}  // namespace jforge
