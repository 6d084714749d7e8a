#include "model/transformer/transformer_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/error.h"

namespace jforge {
namespace {

void require(bool condition, const char* field, const std::string& reason) {
  if (!condition) {
    throw DataError(fmt::format("model configuration: {}: {}", field, reason));
  }
}

void require_dimension(std::int64_t value, const char* field, std::int64_t limit) {
  require(value >= 1 && value <= limit, field,
          fmt::format("{} is outside 1 … {}; correct it in config.json", value, limit));
}

void require_scaling(const RotarySettings& rope) {
  if (rope.scaling == RotaryScaling::none) {
    return;
  }
  require(std::isfinite(rope.factor) && rope.factor >= 1, "rope scaling: factor",
          fmt::format("{} is not at least 1", rope.factor));
  if (rope.scaling == RotaryScaling::llama3) {
    require(rope.low_frequency_factor > 0 &&
                rope.low_frequency_factor < rope.high_frequency_factor &&
                std::isfinite(rope.high_frequency_factor),
            "rope scaling: high_freq_factor",
            fmt::format("{} is not above low_freq_factor {}, or that is not above 0",
                        rope.high_frequency_factor, rope.low_frequency_factor));
    require(rope.original_positions >= 1, "rope scaling: original_max_position_embeddings",
            fmt::format("{} is not at least 1", rope.original_positions));
  }
}

constexpr FamilyTraits kFamilies[] = {
    {.family = ModelFamily::qwen2,
     .model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .attention_bias = true,
     .needs_kv_heads = true},
    {.family = ModelFamily::llama,
     .model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .rope_theta = 10000},
    {.family = ModelFamily::mistral,
     .model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .window = 4096},
    {.family = ModelFamily::qwen3,
     .model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .query_key_norm = QueryKeyNorm::heads,
     .head_size = 128},
    {.family = ModelFamily::smollm3,
     .model_type = "smollm3",
     .architecture = "SmolLM3ForCausalLM",
     .some_layers_without_rope = true,
     .needs_kv_heads = true,
     .tied_embeddings = true,
     .rope_theta = 2000000},
    {.family = ModelFamily::olmo2,
     .model_type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .query_key_norm = QueryKeyNorm::projections,
     .norms_after = true,
     .rope_theta = 10000},
    {.family = ModelFamily::granite,
     .model_type = "granite",
     .architecture = "GraniteForCausalLM",
     .multipliers = kMultipliers,
     .rope_theta = 10000},
};

}  // namespace

std::span<const FamilyTraits> family_traits() { return kFamilies; }

const FamilyTraits& traits_of(ModelFamily family) {
  return *std::ranges::find(kFamilies, family, &FamilyTraits::family);
}

void TransformerConfig::validate() const {
  // So that sizes of all weights together are within 64 bits.
  constexpr std::int64_t kMaxDimension = std::int64_t{1} << 22;
  constexpr std::int64_t kMaxLayers = std::int64_t{1} << 14;
  require_dimension(vocabulary_size, "vocab_size", std::numeric_limits<TokenId>::max());
  require_dimension(hidden_size, "hidden_size", kMaxDimension);
  require_dimension(intermediate_size, "intermediate_size", kMaxDimension);
  require_dimension(num_layers, "num_hidden_layers", kMaxLayers);
  require_dimension(num_heads, "num_attention_heads", kMaxDimension);
  require_dimension(num_kv_heads, "num_key_value_heads", kMaxDimension);
  require_dimension(max_position_embeddings, "max_position_embeddings",
                    std::numeric_limits<std::int32_t>::max());
  if (own_head_size) {
    require_dimension(*own_head_size, "head_dim", kMaxDimension);
    require_dimension(num_heads * *own_head_size, "num_attention_heads · head_dim", kMaxDimension);
  } else {
    require(hidden_size % num_heads == 0, "hidden_size",
            fmt::format("{} is not a multiple of num_attention_heads {}", hidden_size, num_heads));
  }
  require(num_heads % num_kv_heads == 0, "num_attention_heads",
          fmt::format("{} is not a multiple of num_key_value_heads {}", num_heads, num_kv_heads));
  require(head_size() % 2 == 0, own_head_size ? "head_dim" : "hidden_size",
          fmt::format("the head size {} is odd, rotary positions need pairs", head_size()));
  require(std::isfinite(rms_norm_eps) && rms_norm_eps > 0 && rms_norm_eps < 1, "rms_norm_eps",
          fmt::format("{} is outside (0, 1)", rms_norm_eps));
  require(std::isfinite(rope.theta) && rope.theta > 1, "rope_theta",
          fmt::format("{} is not above 1", rope.theta));
  require_scaling(rope);
  for (const auto& [key, value] : traits_of(family).multipliers) {
    // So that LayerPlan's factors and epsilons are within float32.
    require(multipliers.*value >= 1e-6 && multipliers.*value <= 1e6, key,
            fmt::format("{} is outside 1e-6 … 1e6", multipliers.*value));
  }
  for (std::size_t i = 0; i < layers_without_rope.size(); ++i) {
    const std::int64_t layer = layers_without_rope[i];
    require(layer >= (i == 0 ? 0 : layers_without_rope[i - 1] + 1) && layer < num_layers,
            "no_rope_layers", fmt::format("layer {} is not one of {} in order", layer, num_layers));
  }
  for (const TokenId id : eos_ids) {
    require(id >= 0 && id < vocabulary_size, "eos_token_id",
            fmt::format("{} is outside the vocabulary of {}", id, vocabulary_size));
  }
}

}  // namespace jforge
