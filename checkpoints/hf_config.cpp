#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoints/hf_files_internal.h"
#include "checkpoints/hf_model.h"
#include "data/tokenizer/model_directory.h"
#include "runtime/error.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Both keys, if present, must name the same family.
const FamilyTraits& read_family(const HfJsonFile& file) {
  const json* const architectures = file.find("architectures");
  const json* const model_type = file.find("model_type");
  if (architectures == nullptr && model_type == nullptr) {
    file.refuse("architectures", "missing, and so is model_type");
  }
  const auto named = [&](const FamilyTraits& family) {
    return architectures == nullptr ||
           (architectures->is_array() &&
            std::ranges::find(*architectures, json(family.architecture)) != architectures->end());
  };
  const auto typed = [&](const FamilyTraits& family) {
    return model_type == nullptr || *model_type == json(family.model_type);
  };
  for (const FamilyTraits& family : family_traits()) {
    if (named(family) && typed(family)) {
      return family;
    }
  }
  const auto known = [](const char* FamilyTraits::*name) {
    std::string names;
    for (const FamilyTraits& family : family_traits()) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", family.*name);
    }
    return names;
  };
  if (std::ranges::none_of(family_traits(), named)) {
    file.refuse("architectures",
                fmt::format("{} is not supported; known are {}", architectures->dump(),
                            known(&FamilyTraits::architecture)));
  }
  if (std::ranges::none_of(family_traits(), typed)) {
    file.refuse("model_type", fmt::format("{} is not supported; known are {}", model_type->dump(),
                                          known(&FamilyTraits::model_type)));
  }
  file.refuse("model_type", fmt::format("{} does not go with architectures {}", model_type->dump(),
                                        architectures->dump()));
}

/// Accepts windows that cover every position, because they are full attention.
void check_window(const HfJsonFile& file, std::int64_t when_absent) {
  const bool named = file.names("sliding_window");
  if (named && file.find("sliding_window") == nullptr) {
    return;
  }
  const std::int64_t window = named ? file.integer("sliding_window") : when_absent;
  const std::int64_t positions = file.integer("max_position_embeddings");
  if (window < positions) {
    file.refuse(
        "sliding_window",
        fmt::format("{}{} is below max_position_embeddings {}, and only full attention is "
                    "supported; for texts of at most {} tokens set max_position_embeddings to {}",
                    window, named ? "" : ", which an absent key means,", positions, window,
                    window));
  }
}

/// Rejects models that would run with silently wrong results.
void check_features(const HfJsonFile& file, const FamilyTraits& family) {
  const json& activation = file.require("hidden_act");
  if (activation != json("silu") && activation != json("swish")) {  // One function, two names.
    file.refuse("hidden_act",
                fmt::format("{} is not supported; only \"silu\" is", activation.dump()));
  }
  if (file.boolean("use_sliding_window", false)) {
    file.refuse("use_sliding_window", "true is not supported; only full attention is");
  }
  if (family.window) {
    check_window(file, *family.window);
  }
  for (const char* const bias : {"attention_bias", "mlp_bias"}) {
    if (!family.attention_bias && file.boolean(bias, false)) {
      file.refuse(bias, "true is not supported; only false is");
    }
  }
  if (const json* const types = file.find("layer_types"); types != nullptr) {
    const bool full = types->is_array() && std::ranges::all_of(*types, [](const json& type) {
                        return type == json("full_attention");
                      });
    if (!full) {
      file.refuse("layer_types", "only \"full_attention\" layers are supported");
    }
  }
  if (file.find("quantization_config") != nullptr) {
    file.refuse("quantization_config", "quantised weights are not supported; use F32, BF16 or F16");
  }
}

double rope_number(const HfJsonFile& file, const char* where, const json& parameters,
                   const char* key) {
  const auto found = parameters.find(key);
  if (found == parameters.end() || !found->is_number()) {
    file.refuse(where, fmt::format("{} names no number {}", parameters.dump(), key));
  }
  return found->get<double>();
}

void read_rope_scaling(const HfJsonFile& file, const char* where, const json& parameters,
                       RotarySettings& rope) {
  if (!parameters.is_object()) {
    file.refuse(where, fmt::format("{} is not an object", parameters.dump()));
  }
  const json type = parameters.value("rope_type", parameters.value("type", json("default")));
  if (type == json("linear")) {
    rope.scaling = RotaryScaling::linear;
  } else if (type == json("llama3")) {
    rope.scaling = RotaryScaling::llama3;
  } else if (type != json("default")) {
    file.refuse(where, fmt::format("rope_type {} is not supported; known are default, linear and "
                                   "llama3. A model that was trained without scaling is used "
                                   "within its first positions without that key",
                                   type.dump()));
  }
  if (parameters.value("partial_rotary_factor", json(1)) != json(1)) {
    file.refuse(where, "partial_rotary_factor is not supported; only 1 is");
  }
  const auto number = [&](const char* key) { return rope_number(file, where, parameters, key); };
  if (rope.scaling != RotaryScaling::none) {
    rope.factor = number("factor");
  }
  if (rope.scaling == RotaryScaling::llama3) {
    rope.low_frequency_factor = number("low_freq_factor");
    rope.high_frequency_factor = number("high_freq_factor");
    const double positions = number("original_max_position_embeddings");
    constexpr double kMostPositions = std::numeric_limits<std::int32_t>::max();
    if (!(positions >= 1 && positions <= kMostPositions && positions == std::floor(positions))) {
      file.refuse(where,
                  fmt::format("original_max_position_embeddings {} is not a positive whole number",
                              positions));
    }
    rope.original_positions = static_cast<std::int64_t>(positions);
  }
}

/// transformers 4 has rope_theta and rope_scaling, 5 rope_parameters; contradictions are errors.
RotarySettings read_rope(const HfJsonFile& file, const FamilyTraits& family) {
  RotarySettings rope;
  const json* const parameters = file.find("rope_parameters");
  const json* const scaling = file.find("rope_scaling");
  if (scaling != nullptr) {
    read_rope_scaling(file, "rope_scaling", *scaling, rope);
  }
  if (parameters != nullptr) {
    RotarySettings newer;
    read_rope_scaling(file, "rope_parameters", *parameters, newer);
    if (scaling != nullptr && newer != rope) {
      file.refuse(
          "rope_scaling",
          fmt::format(
              "{} differs from rope_parameters {}; keep the one that the model was trained with",
              scaling->dump(), parameters->dump()));
    }
    rope = newer;
  }
  if (parameters != nullptr && parameters->contains("rope_theta")) {
    rope.theta = rope_number(file, "rope_parameters", *parameters, "rope_theta");
  } else if (!family.rope_theta || file.find("rope_theta") != nullptr) {
    rope.theta = file.number("rope_theta");
  } else {
    rope.theta = *family.rope_theta;
  }
  const bool inside = scaling != nullptr && scaling->contains("rope_theta");
  const double beside = file.find("rope_theta") != nullptr ? file.number("rope_theta") : rope.theta;
  if (beside != rope.theta ||
      (inside && rope_number(file, "rope_scaling", *scaling, "rope_theta") != rope.theta)) {
    file.refuse("rope_theta", fmt::format("{} differs from the rotary embedding's own; keep the "
                                          "one that the model was trained with",
                                          beside));
  }
  constexpr const char* kOriginal = "original_max_position_embeddings";
  if (rope.scaling == RotaryScaling::llama3 && file.find(kOriginal) != nullptr &&
      file.integer(kOriginal) != rope.original_positions) {
    file.refuse(kOriginal, fmt::format("it differs from the one of the rotary embedding's scaling "
                                       "({}); keep the one that the model was trained with",
                                       rope.original_positions));
  }
  return rope;
}

/// Returns the layers with 0 in no_rope_layers, else every no_rope_layer_interval-th.
std::vector<std::int64_t> read_layers_without_rope(const HfJsonFile& file, std::int64_t layers) {
  constexpr const char* kLayers = "no_rope_layers";
  constexpr const char* kInterval = "no_rope_layer_interval";
  std::vector<std::int64_t> without;
  if (const json* const rotates = file.find(kLayers); rotates != nullptr) {
    const auto is_flag = [](const json& flag) { return flag == json(0) || flag == json(1); };
    if (!rotates->is_array() || std::ssize(*rotates) < layers ||
        !std::ranges::all_of(*rotates, is_flag)) {
      file.refuse(kLayers, fmt::format("it is not a list of 0 or 1 for each of {} layers", layers));
    }
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      if ((*rotates)[static_cast<std::size_t>(layer)] == json(0)) {
        without.push_back(layer);
      }
    }
    return without;
  }
  const std::int64_t interval = file.find(kInterval) != nullptr ? file.integer(kInterval) : 4;
  if (interval < 1) {
    file.refuse(kInterval, fmt::format("{} is below 1", interval));
  }
  for (std::int64_t layer = interval - 1; layer < layers; layer += interval) {
    without.push_back(layer);
  }
  return without;
}

std::optional<std::int64_t> read_head_size(const HfJsonFile& file, const FamilyTraits& family) {
  constexpr std::int64_t kLargest = 1 << 20;  // Keeps products from overflowing.
  if (file.find("head_dim") == nullptr) {
    return family.head_size;
  }
  const std::int64_t size = file.integer("head_dim");
  if (size < 1 || size > kLargest) {
    file.refuse("head_dim", fmt::format("{} is outside 1 … {}", size, kLargest));
  }
  return size;
}

std::vector<TokenId> read_eos(const HfJsonFile& file, const json& value) {
  std::vector<TokenId> ids;
  for (const json& id : value.is_array() ? value : json::array({value})) {
    const bool valid = id.is_number_unsigned() && std::in_range<TokenId>(id.get<std::uint64_t>());
    if (!valid) {
      file.refuse("eos_token_id",
                  fmt::format("{} is not a token id or a list of them", value.dump()));
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

}  // namespace

TransformerConfig read_hf_config(const fs::path& model_directory) {
  expect_model_directory(model_directory);
  expect_no_adapter(model_directory);
  const HfJsonFile file(model_directory / "config.json");
  TransformerConfig config;
  const FamilyTraits& family = read_family(file);
  config.family = family.family;
  check_features(file, family);
  config.vocabulary_size = file.integer("vocab_size");
  config.hidden_size = file.integer("hidden_size");
  config.intermediate_size = file.integer("intermediate_size");
  config.num_layers = file.integer("num_hidden_layers");
  config.num_heads = file.integer("num_attention_heads");
  // Null means one KV head per query head. So does an absent key, unless `transformers` has another
  // default for the family; then the key is required.
  const bool grouped = file.find("num_key_value_heads") != nullptr ||
                       (family.needs_kv_heads && !file.names("num_key_value_heads"));
  config.num_kv_heads = grouped ? file.integer("num_key_value_heads") : config.num_heads;
  config.max_position_embeddings = file.integer("max_position_embeddings");
  config.rms_norm_eps = file.number("rms_norm_eps");
  config.rope = read_rope(file, family);
  if (const std::optional<std::int64_t> size = read_head_size(file, family);
      size && (config.num_heads < 1 || *size * config.num_heads != config.hidden_size)) {
    config.own_head_size = size;
  }
  for (const auto& [key, value] : family.multipliers) {
    config.multipliers.*value = file.find(key) == nullptr ? 1 : file.number(key);
  }
  if (family.some_layers_without_rope) {
    config.layers_without_rope = read_layers_without_rope(file, config.num_layers);
  }
  config.tie_word_embeddings = file.boolean("tie_word_embeddings", family.tied_embeddings);
  if (const json* const eos = file.find("eos_token_id"); eos != nullptr) {
    config.eos_ids = read_eos(file, *eos);
  }
  if (const fs::path path = model_directory / kHfGenerationFile; hf_file_present(path)) {
    const HfJsonFile generation(path);
    if (const json* const eos = generation.find("eos_token_id"); eos != nullptr) {
      config.eos_ids = read_eos(generation, *eos);
    }
  }
  try {
    config.validate();
  } catch (const DataError& error) {
    throw DataError(
        fmt::format("{}: {}", (model_directory / "config.json").string(), error.what()));
  }
  return config;
}

}  // namespace jforge
