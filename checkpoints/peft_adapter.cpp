#include "checkpoints/peft_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "checkpoints/hf_files_internal.h"
#include "checkpoints/safetensors.h"
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

}  // namespace

struct PeftAdapter::State {
  State(const fs::path& directory, const TransformerConfig& model)
      : shape(read_shape(directory)),
        table(model, shape, 1),
        file(checked_hf_file(directory / kAdapterWeights)),
        source{shape, table, [this](const ParameterEntry& entry) { return read(entry); }} {
    for (const ParameterEntry& entry : table.entries()) {
      // The model's own text must not fail by what only proposes.
      if (!std::ranges::all_of(read(entry).span<float>(),
                               [](float value) { return std::isfinite(value); })) {
        throw DataError(fmt::format("{}: {} holds NaN or infinity; train the drafter again",
                                    (directory / kAdapterWeights).string(), entry.name));
      }
    }
    if (file.entries().size() != table.entries().size()) {
      throw DataError(fmt::format("{}: {} tensors where the model's projections need {}",
                                  (directory / kAdapterWeights).string(), file.entries().size(),
                                  table.entries().size()));
    }
  }
  ConstTensorView read(const ParameterEntry& entry) {
    values.resize(static_cast<std::size_t>(entry.shape.elements()));
    file.read_float32(kPeftPrefix + entry.name, dims_of(entry.shape), values);
    return {values.data(), entry.shape};
  }

  AdapterShape shape;
  ParameterTable table;
  SafetensorsFile file;
  std::vector<float> values;
  AdapterSource source;
};

PeftAdapter::PeftAdapter(const fs::path& directory, const TransformerConfig& model)
    : state_(std::make_unique<State>(directory, model)) {}

PeftAdapter::~PeftAdapter() = default;

const ParameterTable& PeftAdapter::table() const noexcept { return state_->table; }

const AdapterSource& PeftAdapter::source() const noexcept { return state_->source; }

std::string PeftAdapter::hash() const {
  std::uint64_t hash = hash64(fmt::format("{}", state_->shape.scale()));
  for (const ParameterEntry& entry : state_->table.entries()) {
    hash = hash64(std::as_bytes(state_->read(entry).span<float>()), hash64(entry.name, hash));
  }
  return hash_hex(hash);
}

bool has_drafter(const fs::path& model_directory) {
  return fs::exists(model_directory / kDrafterFolder / kAdapterConfig);
}

std::unique_ptr<PeftAdapter> find_drafter(const fs::path& model_directory,
                                          const TransformerConfig& model) {
  return has_drafter(model_directory)
             ? std::make_unique<PeftAdapter>(model_directory / kDrafterFolder, model)
             : nullptr;
}

const AdapterSource* drafter_for(std::string_view method, bool needed, const PeftAdapter* drafter,
                                 const fs::path& directory) {
  if (!needed) {
    return nullptr;
  }
  if (drafter == nullptr) {
    throw ConfigError(fmt::format(
        "decoding by \"{}\" needs a drafter, and {} has none in its folder {}; train one "
        "(train.drafter = \"adapter\"), or take another method",
        method, directory.string(), kDrafterFolder));
  }
  return &drafter->source();
}

void write_peft_adapter(const fs::path& directory, const AdapterShape& shape,
                        const ParameterTable& table, const TensorValues& values) {
  make_directory(directory);
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

}  // namespace jforge
