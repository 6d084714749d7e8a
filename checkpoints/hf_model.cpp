#include "checkpoints/hf_model.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "checkpoints/safetensors.h"
#include "runtime/durable_file.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kArchitecture = "Qwen2ForCausalLM";
constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

/// A JSON file whose members are read with their types checked; every error names the file and the
/// key.
class JsonFile {
 public:
  explicit JsonFile(fs::path path) : path_(std::move(path)) {
    try {
      root_ = json::parse(read_file(path_));
    } catch (const json::exception& error) {
      throw DataError(fmt::format("{}: not valid JSON: {}", path_.string(), error.what()));
    }
    if (!root_.is_object()) {
      throw DataError(fmt::format("{}: not a JSON object", path_.string()));
    }
  }

  [[noreturn]] void refuse(std::string_view key, const std::string& reason) const {
    throw DataError(fmt::format("{}: {}: {}", path_.string(), key, reason));
  }
  /// Null counts as absent, as in Hugging Face configurations.
  [[nodiscard]] const json* find(const std::string& key) const {
    const auto found = root_.find(key);
    return found == root_.end() || found->is_null() ? nullptr : &*found;
  }
  [[nodiscard]] const json& require(const std::string& key) const {
    const json* const found = find(key);
    if (found == nullptr) {
      refuse(key, "missing");
    }
    return *found;
  }
  [[nodiscard]] std::int64_t integer(const std::string& key) const {
    const json& value = require(key);
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() &&
         value.get<std::uint64_t>() >
             static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))) {
      refuse(key, fmt::format("{} is not a whole number in range", value.dump()));
    }
    return value.get<std::int64_t>();
  }
  [[nodiscard]] double number(const std::string& key) const {
    const json& value = require(key);
    if (!value.is_number()) {
      refuse(key, fmt::format("{} is not a number", value.dump()));
    }
    return value.get<double>();
  }
  [[nodiscard]] bool boolean(const std::string& key, bool when_absent) const {
    const json* const value = find(key);
    if (value == nullptr) {
      return when_absent;
    }
    if (!value->is_boolean()) {
      refuse(key, fmt::format("{} is neither true nor false", value->dump()));
    }
    return value->get<bool>();
  }

 private:
  fs::path path_;
  json root_;
};

void check_architecture(const JsonFile& file) {
  const json* const architectures = file.find("architectures");
  const json* const model_type = file.find("model_type");
  if (architectures == nullptr && model_type == nullptr) {
    file.refuse("architectures", "missing, and so is model_type");
  }
  if (architectures != nullptr) {
    const bool named =
        architectures->is_array() &&
        std::ranges::find(*architectures, json(kArchitecture)) != architectures->end();
    if (!named) {
      file.refuse("architectures", fmt::format("{} is not supported; only {} is",
                                               architectures->dump(), kArchitecture));
    }
  }
  if (model_type != nullptr && *model_type != json("qwen2")) {
    file.refuse("model_type",
                fmt::format("{} is not supported; only \"qwen2\" is", model_type->dump()));
  }
}

/// Refuses what the kernels do not compute: running such a model would be silently wrong.
void check_features(const JsonFile& file) {
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

/// rope_theta, or the same inside rope_parameters as newer files have it.
double read_rope_theta(const JsonFile& file) {
  const json* const parameters = file.find("rope_parameters");
  if (parameters == nullptr) {
    return file.number("rope_theta");
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

std::vector<TokenId> read_eos(const JsonFile& file, const json& value) {
  std::vector<TokenId> ids;
  for (const json& id : value.is_array() ? value : json::array({value})) {
    const bool valid =
        id.is_number_unsigned() &&
        id.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<TokenId>::max());
    if (!valid) {
      file.refuse("eos_token_id",
                  fmt::format("{} is not a token id or a list of them", value.dump()));
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

/// Weight files of a directory; a single file wins over an index, as in `transformers`.
struct WeightFiles {
  std::map<std::string, SafetensorsFile> files;  ///< By name.
  std::map<std::string, std::string> file_of;    ///< Tensor name to file name.
};

/// Shard names come from outside: none may leave the directory.
std::map<std::string, std::string> read_index(const fs::path& directory) {
  const JsonFile index(directory / kIndexFile);
  const json& weight_map = index.require("weight_map");
  if (!weight_map.is_object()) {
    index.refuse("weight_map", "not a map of tensor names to files");
  }
  std::map<std::string, std::string> file_of;
  for (const auto& [tensor, file] : weight_map.items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : std::string();
    if (!name.ends_with(".safetensors") || fs::path(name).filename() != name) {
      index.refuse("weight_map", fmt::format("tensor {}: {} is not the name of a safetensors file "
                                             "in the directory",
                                             tensor, file.dump()));
    }
    file_of.emplace(tensor, name);
  }
  return file_of;
}

/// Unlike fs::exists this does not throw where a parent may not be read: opening the file names
/// that reason.
bool present(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::set<std::string> weight_file_names(const fs::path& directory) {
  if (present(directory / kWeightsFile)) {
    return {kWeightsFile};
  }
  if (!present(directory / kIndexFile)) {
    throw DataError(fmt::format("{}: neither {} nor {} is there; a model needs one of them",
                                directory.string(), kWeightsFile, kIndexFile));
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : read_index(directory)) {
    names.insert(file);
  }
  return names;
}

WeightFiles open_weights(const fs::path& directory) {
  WeightFiles weights;
  for (const std::string& name : weight_file_names(directory)) {
    weights.files.emplace(name, SafetensorsFile(directory / name));
  }
  const bool sharded = !weights.files.contains(kWeightsFile);
  for (const auto& [name, file] : weights.files) {
    for (const auto& [tensor, entry] : file.entries()) {
      if (!weights.file_of.emplace(tensor, name).second) {
        throw DataError(fmt::format("{}: tensor {} is in both {} and {}", directory.string(),
                                    tensor, weights.file_of.at(tensor), name));
      }
    }
  }
  if (sharded) {
    for (const auto& [tensor, name] : read_index(directory)) {
      const auto found = weights.file_of.find(tensor);
      if (found == weights.file_of.end() || found->second != name) {
        throw DataError(fmt::format("{}: tensor {} is missing from {}, where {} places it",
                                    directory.string(), tensor, name, kIndexFile));
      }
    }
  }
  return weights;
}

bool is_weight_file(const std::string& name) {
  constexpr std::string_view kSuffixes[] = {".safetensors", ".safetensors.index.json",
                                            ".bin",         ".bin.index.json",
                                            ".pt",          ".pth",
                                            ".gguf",        ".h5",
                                            ".msgpack",     ".onnx"};
  return std::ranges::any_of(kSuffixes,
                             [&](std::string_view suffix) { return name.ends_with(suffix); });
}

/// Text that serialises what the configuration says; keys of `base` that it does not know stay as
/// they are.
std::string config_text(const fs::path& source_directory, const TransformerConfig& config,
                        DType stored) {
  nlohmann::ordered_json root;
  const fs::path source = source_directory / "config.json";
  if (fs::exists(source)) {
    if (!(read_hf_config(source_directory) == config)) {
      throw DataError(
          fmt::format("{}: describes another model than the weights to export", source.string()));
    }
    root = nlohmann::ordered_json::parse(read_file(source));
  } else {
    root = {{"architectures", {kArchitecture}},
            {"model_type", "qwen2"},
            {"hidden_act", "silu"},
            {"hidden_size", config.hidden_size},
            {"intermediate_size", config.intermediate_size},
            {"num_hidden_layers", config.num_layers},
            {"num_attention_heads", config.num_heads},
            {"num_key_value_heads", config.num_kv_heads},
            {"vocab_size", config.vocabulary_size},
            {"tie_word_embeddings", config.tie_word_embeddings},
            {"rms_norm_eps", config.rms_norm_eps},
            {"rope_theta", config.rope_theta},
            {"max_position_embeddings", config.max_position_embeddings},
            {"use_sliding_window", false}};
    if (config.eos_ids.size() == 1) {
      root["eos_token_id"] = config.eos_ids.front();
    } else if (!config.eos_ids.empty()) {
      root["eos_token_id"] = config.eos_ids;
    }
  }
  const std::string name = dtype_name(stored);
  if (root.contains("dtype")) {
    root["dtype"] = name;  // What newer `transformers` write instead of torch_dtype.
  }
  if (root.contains("torch_dtype") || !root.contains("dtype")) {
    root["torch_dtype"] = name;
  }
  return root.dump(2) + "\n";
}

/// Cuts the table's tensors, in order, into shards of at most `max_shard_bytes` (a larger tensor
/// has its own).
std::vector<std::vector<SafetensorsTensor>> plan_shards(const ParameterTable& table,
                                                        ConstTensorView flat, DType stored,
                                                        std::uint64_t max_shard_bytes) {
  std::vector<std::vector<SafetensorsTensor>> shards(1);
  std::uint64_t shard_bytes = 0;
  const std::span<const float> values = flat.span<float>();
  for (const ParameterEntry& entry : table.entries()) {
    SafetensorsTensor tensor{.name = entry.name, .shape = {}, .values = {}, .stored = stored};
    for (int dim = 0; dim < entry.shape.rank(); ++dim) {
      tensor.shape.push_back(entry.shape[dim]);
    }
    tensor.values = values.subspan(static_cast<std::size_t>(entry.offset),
                                   static_cast<std::size_t>(entry.shape.elements()));
    const std::uint64_t bytes = tensor.values.size() * dtype_bytes(stored);
    if (!shards.back().empty() && shard_bytes + bytes > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += bytes;
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

void write_weights(const fs::path& directory,
                   const std::vector<std::vector<SafetensorsTensor>>& shards, DType stored) {
  const std::map<std::string, std::string> metadata{
      {"format", "pt"}};  // `transformers` asks for it.
  if (shards.size() == 1) {
    write_safetensors(directory / kWeightsFile, shards.front(), metadata);
    return;
  }
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  std::uint64_t total_bytes = 0;
  for (std::size_t index = 0; index < shards.size(); ++index) {
    const std::string name =
        fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, shards.size());
    write_safetensors(directory / name, shards[index], metadata);
    for (const SafetensorsTensor& tensor : shards[index]) {
      weight_map[tensor.name] = name;
      total_bytes += tensor.values.size() * dtype_bytes(stored);
    }
  }
  const nlohmann::ordered_json root{{"metadata", {{"total_size", total_bytes}}},
                                    {"weight_map", weight_map}};
  publish_file(directory / kIndexFile, root.dump(2) + "\n");
}

void copy_other_files(const fs::path& source_directory, const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& item : fs::directory_iterator(source_directory)) {
    const std::string name = item.path().filename().string();
    // Follows links: the Hugging Face cache is made of them.
    if (item.is_regular_file() && !name.starts_with('.') && name != "config.json" &&
        !is_weight_file(name)) {
      files.push_back(item.path());
    }
  }
  std::ranges::sort(files);
  for (const fs::path& file : files) {
    publish_file(directory / file.filename(), read_file(file));
  }
}

/// An export may replace an earlier model, never anything else.
void check_replaceable(const fs::path& source_directory, const fs::path& output_directory) {
  if (!fs::exists(output_directory)) {
    return;
  }
  if (fs::equivalent(source_directory, output_directory)) {
    throw ConfigError(
        fmt::format("{}: the export would replace its own source; name another "
                    "output directory",
                    output_directory.string()));
  }
  const bool replaceable =
      fs::is_directory(output_directory) &&
      (fs::is_empty(output_directory) || fs::exists(output_directory / "config.json"));
  if (!replaceable) {
    throw ConfigError(
        fmt::format("{}: exists and is no model directory; name another output "
                    "directory or remove it",
                    output_directory.string()));
  }
}

/// Puts the complete directory `fresh` in the place of `target`; the old one ends up under the name
/// of `fresh`.
void replace_directory(const fs::path& fresh, const fs::path& target) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    sync_directory(target.parent_path());
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) {
    throw EnvironmentError(fmt::format("cannot replace {}: {}", target.string(),
                                       std::generic_category().message(errno)));
  }
  // Network file systems cannot exchange. The old model keeps a name that no sweep removes until
  // the new one is there.
  const fs::path aside = target.string() + ".replaced";
  fs::remove_all(aside);
  commit_rename(target, aside);
  try {
    commit_rename(fresh, target);
  } catch (...) {
    std::error_code ignored;
    fs::rename(aside, target, ignored);
    throw;
  }
  fs::remove_all(aside);
}

/// Removes a directory unless it was renamed away before.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(fs::path path) : path_(std::move(path)) {
    fs::remove_all(path_);
    make_directory(path_);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

 private:
  fs::path path_;
};

}  // namespace

TransformerConfig read_hf_config(const fs::path& model_directory) {
  const JsonFile file(model_directory / "config.json");
  check_architecture(file);
  check_features(file);
  TransformerConfig config;
  config.vocabulary_size = file.integer("vocab_size");
  config.hidden_size = file.integer("hidden_size");
  config.intermediate_size = file.integer("intermediate_size");
  config.num_layers = file.integer("num_hidden_layers");
  config.num_heads = file.integer("num_attention_heads");
  config.num_kv_heads = file.integer("num_key_value_heads");
  config.max_position_embeddings = file.integer("max_position_embeddings");
  config.rms_norm_eps = file.number("rms_norm_eps");
  config.rope_theta = read_rope_theta(file);
  config.tie_word_embeddings = file.boolean("tie_word_embeddings", false);  // Qwen2's own default.
  if (const json* const eos = file.find("eos_token_id"); eos != nullptr) {
    config.eos_ids = read_eos(file, *eos);
  }
  if (const fs::path path = model_directory / "generation_config.json"; present(path)) {
    const JsonFile generation(path);
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

void load_hf_weights(const fs::path& model_directory, const TransformerConfig& config,
                     const ParameterTable& table, TensorView flat) {
  expect(flat.elements() == table.flat_size(), "the flat vector's size differs from the table's");
  const WeightFiles weights = open_weights(model_directory);
  std::set<std::string_view> known;
  const std::span<float> values = flat.span<float>();
  std::ranges::fill(values, 0.0F);  // The padding between groups must be zero.
  for (const ParameterEntry& entry : table.entries()) {
    known.insert(entry.name);
    const auto found = weights.file_of.find(entry.name);
    if (found == weights.file_of.end()) {
      throw DataError(fmt::format("{}: tensor {} is missing from the model's weights",
                                  model_directory.string(), entry.name));
    }
    std::vector<std::int64_t> shape;
    for (int dim = 0; dim < entry.shape.rank(); ++dim) {
      shape.push_back(entry.shape[dim]);
    }
    weights.files.at(found->second)
        .read_float32(entry.name, shape,
                      values.subspan(static_cast<std::size_t>(entry.offset),
                                     static_cast<std::size_t>(entry.shape.elements())));
  }
  for (const auto& [tensor, file] : weights.file_of) {
    const bool harmless = tensor.ends_with("rotary_emb.inv_freq") ||
                          (config.tie_word_embeddings && tensor == "lm_head.weight");
    if (!known.contains(tensor) && !harmless) {
      throw DataError(fmt::format("{}: tensor {} is not part of a {} of this configuration",
                                  (model_directory / file).string(), tensor, kArchitecture));
    }
  }
}

std::string hf_model_hash(const fs::path& model_directory) {
  std::string listing =
      fmt::format("config.json {}\n", hash_hex(hash_file(model_directory / "config.json")));
  for (const std::string& name : weight_file_names(model_directory)) {
    listing += fmt::format("{} {}\n", name, hash_hex(hash_file(model_directory / name)));
  }
  return hash_hex(hash64(listing));
}

namespace {

void write_model_directory(const fs::path& source_directory, const fs::path& output_directory,
                           const TransformerConfig& config, const ParameterTable& table,
                           ConstTensorView flat, DType stored, std::uint64_t max_shard_bytes) {
  expect(flat.elements() == table.flat_size(), "the flat vector's size differs from the table's");
  const fs::path output = fs::absolute(output_directory).lexically_normal();
  const fs::path target = output.has_filename() ? output : output.parent_path();
  if (!fs::is_directory(source_directory)) {
    throw DataError(fmt::format("{}: no such model directory", source_directory.string()));
  }
  check_replaceable(source_directory, target);
  make_directory(target.parent_path());

  const std::string name = target.filename().string();
  const TemporaryDirectory fresh(target.parent_path() / fmt::format(".tmp-{}", name));
  copy_other_files(source_directory, fresh.path());
  write_weights(fresh.path(), plan_shards(table, flat, stored, max_shard_bytes), stored);
  publish_file(fresh.path() / "config.json", config_text(source_directory, config, stored));
  sync_directory(fresh.path());

  if (fs::exists(target)) {
    replace_directory(fresh.path(), target);  // Leaves the old model in `fresh`, which removes it.
  } else {
    commit_rename(fresh.path(), target);
  }
}

}  // namespace

void export_hf_model(const fs::path& source_directory, const fs::path& output_directory,
                     const TransformerConfig& config, const ParameterTable& table,
                     ConstTensorView flat, DType stored, std::uint64_t max_shard_bytes) {
  try {
    write_model_directory(source_directory, output_directory, config, table, flat, stored,
                          max_shard_bytes);
  } catch (const fs::filesystem_error& error) {
    throw EnvironmentError(
        fmt::format("cannot export the model to {}: {}", output_directory.string(), error.what()));
  }
}

}  // namespace jforge
