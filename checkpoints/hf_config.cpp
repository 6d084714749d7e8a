#include <fmt/format.h>

#include <algorithm>
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

/// Both keys must name one family, where they are there.
const HfFamily& read_family(const HfJsonFile& file) {
  const json* const architectures = file.find("architectures");
  const json* const model_type = file.find("model_type");
  if (architectures == nullptr && model_type == nullptr) {
    file.refuse("architectures", "missing, and so is model_type");
  }
  const auto named = [&](const HfFamily& family) {
    return architectures == nullptr ||
           (architectures->is_array() &&
            std::ranges::find(*architectures, json(family.architecture)) != architectures->end());
  };
  const auto typed = [&](const HfFamily& family) {
    return model_type == nullptr || *model_type == json(family.model_type);
  };
  for (const HfFamily& family : kHfFamilies) {
    if (named(family) && typed(family)) {
      return family;
    }
  }
  const auto known = [](const char* HfFamily::*name) {
    std::string names;
    for (const HfFamily& family : kHfFamilies) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", family.*name);
    }
    return names;
  };
  if (std::ranges::none_of(kHfFamilies, named)) {
    file.refuse("architectures",
                fmt::format("{} is not supported; known are {}", architectures->dump(),
                            known(&HfFamily::architecture)));
  }
  if (std::ranges::none_of(kHfFamilies, typed)) {
    file.refuse("model_type", fmt::format("{} is not supported; known are {}", model_type->dump(),
                                          known(&HfFamily::model_type)));
  }
  file.refuse("model_type", fmt::format("{} does not go with architectures {}", model_type->dump(),
                                        architectures->dump()));
}

/// Refuses what the kernels do not compute: running such a model would be silently wrong.
void check_features(const HfJsonFile& file, ModelFamily family) {
  const json& activation = file.require("hidden_act");
  if (activation != json("silu")) {
    file.refuse("hidden_act",
                fmt::format("{} is not supported; only \"silu\" is", activation.dump()));
  }
  if (const json* const scaling = file.find("rope_scaling"); scaling != nullptr) {
    file.refuse("rope_scaling", fmt::format("{} is not supported; only null is", scaling->dump()));
  }
  if (file.boolean("use_sliding_window", false)) {
    file.refuse("use_sliding_window", "true is not supported; only full attention is");
  }
  // Where a Mistral's file does not name it, `transformers` takes a window of 4,096.
  if (family == ModelFamily::mistral &&
      (!file.names("sliding_window") || file.find("sliding_window") != nullptr)) {
    file.refuse("sliding_window", "only null, full attention, is supported");
  }
  for (const char* const bias : {"attention_bias", "mlp_bias"}) {
    if (family != ModelFamily::qwen2 && file.boolean(bias, false)) {
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

/// rope_theta, or the same inside rope_parameters as newer files have it. Llama 2's files have
/// neither.
double read_rope_theta(const HfJsonFile& file, ModelFamily family) {
  const json* const parameters = file.find("rope_parameters");
  if (parameters == nullptr) {
    const bool absent = family == ModelFamily::llama && file.find("rope_theta") == nullptr;
    return absent ? 10000.0 : file.number("rope_theta");
  }
  const bool plain = parameters->is_object() &&
                     parameters->value("rope_type", json("default")) == json("default") &&
                     parameters->contains("rope_theta") && (*parameters)["rope_theta"].is_number();
  if (!plain) {
    file.refuse("rope_parameters",
                fmt::format("{} is not supported; only a default rope_type with a rope_theta is",
                            parameters->dump()));
  }
  return (*parameters)["rope_theta"].get<double>();
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
  const HfJsonFile file(model_directory / "config.json");
  TransformerConfig config;
  config.family = read_family(file).family;
  check_features(file, config.family);
  config.vocabulary_size = file.integer("vocab_size");
  config.hidden_size = file.integer("hidden_size");
  config.intermediate_size = file.integer("intermediate_size");
  config.num_layers = file.integer("num_hidden_layers");
  config.num_heads = file.integer("num_attention_heads");
  // Files older than grouped queries do not name them.
  const bool grouped =
      config.family == ModelFamily::qwen2 || file.find("num_key_value_heads") != nullptr;
  config.num_kv_heads = grouped ? file.integer("num_key_value_heads") : config.num_heads;
  config.max_position_embeddings = file.integer("max_position_embeddings");
  config.rms_norm_eps = file.number("rms_norm_eps");
  config.rope_theta = read_rope_theta(file, config.family);
  config.tie_word_embeddings =
      file.boolean("tie_word_embeddings", false);  // The families' own default.
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
  if (file.find("head_dim") != nullptr && file.integer("head_dim") != config.head_size()) {
    file.refuse("head_dim", fmt::format("{} is not supported; only hidden_size / "
                                        "num_attention_heads = {} is",
                                        file.integer("head_dim"), config.head_size()));
  }
  return config;
}

}  // namespace jforge
