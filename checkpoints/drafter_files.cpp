#include "checkpoints/drafter_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "checkpoints/hf_files_internal.h"
#include "checkpoints/safetensors.h"
#include "runtime/bounded_json.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kAdapterConfig = "adapter_config.json";
constexpr const char* kAdapterWeights = "adapter_model.safetensors";
constexpr const char* kPeftPrefix = "base_model.model.";
constexpr const char* kHeadConfig = "config.json";
constexpr const char* kHeadArchitecture = "DFlashDraftModel";
/// Columns of all features, in their order.
constexpr const char* kHeadFeatures = "fc.weight";

/// Keys whose other values change the formula, or which modules have additions, with the value that
/// changes nothing. Absent or null is as good.
const std::vector<std::pair<const char*, json>>& plain_values() {
  static const std::vector<std::pair<const char*, json>> values{
      {"bias", "none"},
      {"use_rslora", false},
      {"use_dora", false},
      {"fan_in_fan_out", false},
      {"lora_bias", false},
      {"use_qalora", false},
      {"rank_pattern", json::object()},
      {"alpha_pattern", json::object()},
      {"modules_to_save", nullptr},
      {"layers_to_transform", nullptr},
      {"exclude_modules", nullptr},
      {"target_parameters", nullptr},
      {"layer_replication", nullptr},
      {"trainable_token_indices", nullptr},
      {"alora_invocation_tokens", nullptr},
      {"use_bdlora", nullptr},
      {"arrow_config", nullptr},
      {"monteclora_config", nullptr},
      {"kasa_config", nullptr}};
  return values;
}

AdapterShape read_shape(const fs::path& directory) {
  const HfJsonFile file(directory / kAdapterConfig);
  if (file.require("peft_type") != "LORA") {
    file.refuse("peft_type", "only \"LORA\" can draft");
  }
  const auto refuse_value = [&](const char* key, const json& value) {
    file.refuse(key, fmt::format("{} is not supported; train the drafter with jforge, or a plain "
                                 "LoRA of projections",
                                 value.dump()));
  };
  for (const auto& [key, plain] : plain_values()) {
    if (const json* const value = file.find(key); value != nullptr && *value != plain) {
      refuse_value(key, *value);
    }
  }
  // Other named initialisations, such as "pissa", also change the model's own weights.
  if (const json* const value = file.find("init_lora_weights");
      value != nullptr && value->is_string() && *value != "gaussian" && *value != "eva") {
    refuse_value("init_lora_weights", *value);
  }
  AdapterShape shape;
  const std::int64_t rank = file.integer("r");
  shape.alpha = file.number("lora_alpha");
  constexpr std::int64_t kMostRank = 1 << 16;
  if (rank < 1 || rank > kMostRank || !(shape.alpha > 0)) {
    file.refuse("r", fmt::format("r must be 1 to {} and lora_alpha positive", kMostRank));
  }
  shape.rank = static_cast<std::int32_t>(rank);
  const json& targets = file.require("target_modules");
  shape.targets.clear();
  std::size_t known = 0;
  for (const auto& [weight, name] : kProjections) {
    const auto count = targets.is_array() ? std::ranges::count(targets, json(name)) : 0;
    known += static_cast<std::size_t>(count);
    if (count > 0) {
      shape.targets.push_back(weight);
    }
  }
  if (known == 0 || known != targets.size()) {
    file.refuse("target_modules",
                fmt::format("{} must be a list of projections such as \"q_proj\"", targets.dump()));
  }
  return shape;
}

/// Throws unless the head's layers have the model's sizes and keys. Loaders name the causal flag
/// differently; without any the head is not causal.
HeadShape read_head_shape(const fs::path& directory, const TransformerConfig& model) {
  const HfJsonFile file(directory / kHeadConfig);
  const json& names = file.require("architectures");
  if (!names.is_array() || std::ranges::find(names, json(kHeadArchitecture)) == names.end()) {
    file.refuse("architectures", fmt::format("only {} can draft", kHeadArchitecture));
  }
  const auto expect_equal = [&](const char* key, const json& found, const json& own) {
    if (found != own) {
      file.refuse(key, fmt::format("{} is not the model's {}", found.dump(), own.dump()));
    }
  };
  const auto expect_integer = [&](const char* key, std::int64_t own) {
    expect_equal(key, file.integer(key), own);
  };
  expect_integer("hidden_size", model.hidden_size);
  expect_integer("intermediate_size", model.intermediate_size);
  expect_integer("num_attention_heads", model.num_heads);
  expect_integer("num_key_value_heads", model.num_kv_heads);
  expect_integer("head_dim", model.head_size());
  expect_integer("num_target_layers", model.num_layers);
  expect_equal("rms_norm_eps", file.number("rms_norm_eps"), model.rms_norm_eps);
  const json& own = file.require("dflash_config");
  const auto causal = [](const json* value) { return value != nullptr && *value == json(true); };
  if (!own.is_object() || !(causal(file.find("is_causal")) || causal(file.find("causal_head")) ||
                            own.value("causal", json()) == json(true))) {
    file.refuse("dflash_config", "the rows of a block must be causal (\"causal\": true)");
  }
  HeadShape shape;
  try {
    shape.layers = json_integer<std::int32_t>(file.require("num_hidden_layers"));
    shape.mask_token = json_integer<TokenId>(own.at("mask_token_id"));
    for (const json& layer : own.at("target_layer_ids")) {
      shape.features.push_back(json_integer<std::int32_t>(layer));
    }
    (void)head_config(model, shape);
  } catch (const json::exception& error) {
    file.refuse("dflash_config", error.what());
  } catch (const ConfigError& error) {
    file.refuse("dflash_config", error.what());
  }
  return shape;
}

DrafterShape read_drafter_shape(const fs::path& directory, const TransformerConfig& model) {
  return fs::exists(directory / kAdapterConfig) ? DrafterShape(read_shape(directory))
                                                : DrafterShape(read_head_shape(directory, model));
}

/// Returns the name of a head's tensor in its file.
std::string name_in_file(const ParameterEntry& entry) {
  constexpr std::string_view kModel = "model.";
  return entry.name.starts_with(kModel) ? entry.name.substr(kModel.size()) : entry.name;
}

bool is_feature(const ParameterEntry& entry) { return entry.name.starts_with("fc."); }

}  // namespace

struct DrafterFiles::State {
  State(const fs::path& directory, const TransformerConfig& model)
      : shape(read_drafter_shape(directory, model)),
        weights(directory /
                (std::holds_alternative<AdapterShape>(shape) ? kAdapterWeights : kHfWeightsFile)),
        table(model, shape, 1),
        file(checked_hf_file(weights)),
        source{shape, table, [this](const ParameterEntry& entry) { return read(entry); }} {
    for (const ParameterEntry& entry : table.entries()) {
      // The model's own text must not fail by what only proposes.
      if (!std::ranges::all_of(read(entry).span<float>(),
                               [](float value) { return std::isfinite(value); })) {
        throw DataError(fmt::format("{}: {} holds NaN or infinity; train the drafter again",
                                    weights.string(), entry.name));
      }
    }
    const auto* const head = std::get_if<HeadShape>(&shape);
    const std::size_t tensors =
        table.entries().size() - (head == nullptr ? 0 : head->features.size() - 1);
    if (file.entries().size() != tensors) {
      throw DataError(fmt::format("{}: {} tensors where the drafter has {}", weights.string(),
                                  file.entries().size(), tensors));
    }
  }
  ConstTensorView read(const ParameterEntry& entry) {
    values.resize(static_cast<std::size_t>(entry.shape.elements()));
    if (std::holds_alternative<AdapterShape>(shape)) {
      file.read_float32(kPeftPrefix + entry.name, dims_of(entry.shape), values);
    } else if (is_feature(entry)) {
      read_feature(entry);
    } else {
      file.read_float32(name_in_file(entry), dims_of(entry.shape), values);
    }
    return {values.data(), entry.shape};
  }
  void read_feature(const ParameterEntry& entry) {
    const auto count = std::ssize(std::get<HeadShape>(shape).features);
    const std::int64_t size = entry.shape[1];
    std::int64_t index = 0;
    while (entry.name != head_feature(static_cast<std::size_t>(index))) {
      ++index;
    }
    std::vector<float> all(static_cast<std::size_t>(entry.shape.elements() * count));
    file.read_float32(kHeadFeatures, std::array{entry.shape[0], size * count}, all);
    for (std::int64_t row = 0; row < entry.shape[0]; ++row) {
      std::copy_n(all.data() + (row * count + index) * size, size, values.data() + row * size);
    }
  }

  DrafterShape shape;
  fs::path weights;
  ParameterTable table;
  SafetensorsFile file;
  std::vector<float> values;
  DrafterSource source;
};

DrafterFiles::DrafterFiles(const fs::path& directory, const TransformerConfig& model)
    : state_(std::make_unique<State>(directory, model)) {}

DrafterFiles::~DrafterFiles() = default;

const ParameterTable& DrafterFiles::table() const noexcept { return state_->table; }

const DrafterSource& DrafterFiles::source() const noexcept { return state_->source; }

std::string DrafterFiles::hash() const {
  const auto* const head = std::get_if<HeadShape>(&state_->shape);
  std::uint64_t hash = hash64(
      head == nullptr ? fmt::format("{}", std::get<AdapterShape>(state_->shape).scale())
                      : fmt::format("{} {}", head->mask_token, fmt::join(head->features, " ")));
  for (const ParameterEntry& entry : state_->table.entries()) {
    hash = hash64(std::as_bytes(state_->read(entry).span<float>()), hash64(entry.name, hash));
  }
  return hash_hex(hash);
}

bool has_drafter(const fs::path& model_directory) {
  return has_head(model_directory) || fs::exists(model_directory / kDrafterFolder / kAdapterConfig);
}

bool has_head(const fs::path& model_directory) {
  return fs::exists(model_directory / kDrafterFolder / kHeadConfig);
}

std::unique_ptr<DrafterFiles> find_drafter(const fs::path& model_directory,
                                           const TransformerConfig& model) {
  return has_drafter(model_directory)
             ? std::make_unique<DrafterFiles>(model_directory / kDrafterFolder, model)
             : nullptr;
}

const DrafterSource* drafter_for(std::string_view method, DrafterNeed need,
                                 const DrafterFiles* drafter, const fs::path& directory) {
  if (need == DrafterNeed::nothing) {
    return nullptr;
  }
  if (drafter == nullptr) {
    throw ConfigError(fmt::format(
        "decoding by \"{}\" needs a drafter, and {} has none in its folder {}; train one "
        "(train.drafter), or take another method",
        method, directory.string(), kDrafterFolder));
  }
  if (need == DrafterNeed::head && !std::holds_alternative<HeadShape>(drafter->source().shape)) {
    throw ConfigError(fmt::format(
        "decoding by \"{}\" needs a head, and {} has an adapter in its folder {}; train a head "
        "(train.drafter = \"head\"), or take \"draft\"",
        method, directory.string(), kDrafterFolder));
  }
  return &drafter->source();
}

namespace {

void write_peft_adapter(const fs::path& directory, const AdapterShape& shape,
                        const ParameterTable& table, const TensorValues& values) {
  // No key that an older version of PEFT lacks.
  nlohmann::ordered_json config{{"peft_type", "LORA"},
                                {"task_type", "CAUSAL_LM"},
                                {"base_model_name_or_path", ".."},
                                {"bias", "none"},
                                {"fan_in_fan_out", false},
                                {"r", shape.rank},
                                {"lora_alpha", shape.alpha},
                                {"lora_dropout", 0.0},
                                {"inference_mode", true},
                                {"target_modules", json::array()}};
  for (const auto& [weight, name] : kProjections) {
    if (std::ranges::find(shape.targets, weight) != shape.targets.end()) {
      config["target_modules"].push_back(name);
    }
  }
  publish_file(directory / kAdapterConfig, config.dump(2) + "\n");
  std::vector<SafetensorsTensor> tensors;
  for (const ParameterEntry& entry : table.entries()) {
    SafetensorsTensor& tensor = tensors.emplace_back();
    tensor.name = kPeftPrefix + entry.name;
    tensor.shape = dims_of(entry.shape);
    tensor.read = [&values, &entry] { return values(entry); };
  }
  write_safetensors(directory / kAdapterWeights, tensors, {{"format", "pt"}});
}

/// The model's own sizes and rotary positions, in Qwen3's form.
nlohmann::ordered_json head_json(const fs::path& model_directory, const HeadShape& shape,
                                 std::int32_t block_size) {
  const TransformerConfig model = read_hf_config(model_directory);
  nlohmann::ordered_json config{
      {"architectures", {kHeadArchitecture}},
      {"model_type", "qwen3"},
      {"block_size", block_size},
      {"dflash_config",
       {{"mask_token_id", shape.mask_token},
        {"target_layer_ids", shape.features},
        {"causal", true}}},
      {"is_causal", true},
      {"causal_head", true},
      {"num_target_layers", model.num_layers},
      {"num_hidden_layers", shape.layers},
      {"layer_types",
       std::vector<std::string>(static_cast<std::size_t>(shape.layers), "full_attention")},
      {"hidden_size", model.hidden_size},
      {"intermediate_size", model.intermediate_size},
      {"num_attention_heads", model.num_heads},
      {"num_key_value_heads", model.num_kv_heads},
      {"head_dim", model.head_size()},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"rms_norm_eps", model.rms_norm_eps},
      {"max_position_embeddings", model.max_position_embeddings},
      {"rope_theta", model.rope.theta},
      {"use_sliding_window", false},
      {"sliding_window", nullptr},
      {"tie_word_embeddings", model.tie_word_embeddings},
      {"vocab_size", model.vocabulary_size},
      {"torch_dtype", "float32"}};
  const HfJsonFile source(model_directory / kHeadConfig);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (const json* const value = source.find(key)) {
      config[key] = *value;
    }
  }
  return config;
}

void write_dflash_head(const fs::path& directory, const fs::path& model_directory,
                       const HeadShape& shape, std::int32_t block_size, const ParameterTable& table,
                       const TensorValues& values) {
  publish_file(directory / kHeadConfig,
               head_json(model_directory, shape, block_size).dump(2) + "\n");
  std::vector<float> joined;  // The features' matrices, side by side; they come first.
  std::vector<SafetensorsTensor> tensors;
  const auto count = std::ssize(shape.features);
  const ParameterEntry& first = table.entry(head_feature(0));
  const std::int64_t size = first.shape[1];
  tensors.push_back({.name = kHeadFeatures, .shape = {first.shape[0], size * count}, .values = {}});
  tensors.back().read = [&, count, size]() -> std::span<const float> {
    joined.resize(static_cast<std::size_t>(first.shape.elements() * count));
    for (std::int64_t i = 0; i < count; ++i) {
      const auto part = values(table.entry(head_feature(static_cast<std::size_t>(i))));
      for (std::int64_t row = 0; row < first.shape[0]; ++row) {
        std::copy_n(part.data() + row * size, size, joined.data() + (row * count + i) * size);
      }
    }
    return joined;
  };
  for (const ParameterEntry& entry : table.entries()) {
    if (!is_feature(entry)) {
      tensors.push_back({.name = name_in_file(entry), .shape = dims_of(entry.shape), .values = {}});
      tensors.back().read = [&values, &entry] { return values(entry); };
    }
  }
  write_safetensors(directory / kHfWeightsFile, tensors, {{"format", "pt"}});
}

}  // namespace

void write_drafter(const fs::path& directory, const fs::path& model_directory,
                   const DrafterShape& shape, std::int32_t block_size, const ParameterTable& table,
                   const TensorValues& values) {
  make_directory(directory);
  if (const auto* const adapter = std::get_if<AdapterShape>(&shape)) {
    write_peft_adapter(directory, *adapter, table, values);
  } else {
    write_dflash_head(directory, model_directory, std::get<HeadShape>(shape), block_size, table,
                      values);
  }
}

}  // namespace jforge
