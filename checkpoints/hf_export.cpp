#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "checkpoints/directory_checksums.h"
#include "checkpoints/drafter_files.h"
#include "checkpoints/hf_files_internal.h"
#include "checkpoints/hf_model.h"
#include "checkpoints/jacobi_decoding.h"
#include "checkpoints/safetensors.h"
#include "data/tokenizer/unicode.h"
#include "model/transformer/layer_plan.h"
#include "runtime/bounded_json.h"
#include "runtime/contained_file.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/read_file.h"

namespace jforge {

const char* custom_generate_source();  // of custom_generate/generate.py
namespace {

constexpr const char* kCustomGenerateFolder = "custom_generate";
constexpr const char* kCustomGenerateFile = "generate.py";

namespace fs = std::filesystem;

bool is_weight_file(const std::string& name) {
  constexpr std::string_view kSuffixes[] = {".safetensors", ".safetensors.index.json",
                                            ".bin",         ".bin.index.json",
                                            ".pt",          ".pth",
                                            ".gguf",        ".h5",
                                            ".msgpack",     ".onnx"};
  return std::ranges::any_of(kSuffixes,
                             [&](std::string_view suffix) { return name.ends_with(suffix); });
}

using OrderedJson = nlohmann::ordered_json;

/// Null if there is none. Throws DataError if it describes another model.
OrderedJson source_config(const fs::path& source_directory, const TransformerConfig& config) {
  const fs::path source = source_directory / "config.json";
  if (!hf_file_present(source)) {
    return nullptr;
  }
  if (!(read_hf_config(source_directory) == config)) {
    throw DataError(
        fmt::format("{}: describes another model than the weights to export", source.string()));
  }
  return parse_bounded_json<OrderedJson>(read_file(source), source.string());
}

OrderedJson eos_json(const TransformerConfig& config) {
  return config.eos_ids.size() == 1 ? OrderedJson(config.eos_ids.front())
                                    : OrderedJson(config.eos_ids);
}

/// transformers ignores config.json's stop tokens if generation_config.json exists.
void name_stop_tokens(const fs::path& directory, const TransformerConfig& config) {
  const fs::path path = directory / kHfGenerationFile;
  if (!hf_file_present(path) || config.eos_ids.empty()) {
    return;
  }
  auto generation = parse_bounded_json<OrderedJson>(read_file(path), path.string());
  if (generation.is_object() && generation.value("eos_token_id", OrderedJson()).is_null()) {
    generation["eos_token_id"] = eos_json(config);
    publish_file(path, generation.dump(2) + "\n");
  }
}

OrderedJson rope_scaling(const RotarySettings& rope) {
  switch (rope.scaling) {
    case RotaryScaling::none:
    case RotaryScaling::off:  // Per layer only: see no_rope_layers.
      return {{"rope_type", "default"}};
    case RotaryScaling::linear:
      return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case RotaryScaling::llama3:
      break;
  }
  return {{"rope_type", "llama3"},
          {"factor", rope.factor},
          {"low_freq_factor", rope.low_frequency_factor},
          {"high_freq_factor", rope.high_frequency_factor},
          {"original_max_position_embeddings", rope.original_positions}};
}

/// transformers 4 assumes theta 10,000 if a file has only rope_parameters.
void name_rope(OrderedJson& root, const RotarySettings& rope) {
  const OrderedJson scaling = rope_scaling(rope);
  root["rope_theta"] = rope.theta;
  if (rope.scaling != RotaryScaling::none) {
    root["rope_scaling"] = scaling;
  }
  root["rope_parameters"] = scaling;
  root["rope_parameters"]["rope_theta"] = rope.theta;
}

OrderedJson new_config(const TransformerConfig& config) {
  const FamilyTraits& family = traits_of(config.family);
  OrderedJson root = {{"architectures", {family.architecture}},
                      {"model_type", family.model_type},
                      {"vocab_size", config.vocabulary_size},
                      {"hidden_size", config.hidden_size},
                      {"intermediate_size", config.intermediate_size},
                      {"num_hidden_layers", config.num_layers},
                      {"num_attention_heads", config.num_heads},
                      {"num_key_value_heads", config.num_kv_heads},
                      {"max_position_embeddings", config.max_position_embeddings},
                      {"hidden_act", "silu"},
                      {"rms_norm_eps", config.rms_norm_eps},
                      {"tie_word_embeddings", config.tie_word_embeddings},
                      {"use_sliding_window", false},
                      {"attention_dropout", 0.0},
                      {"initializer_range", 0.02},
                      {"use_cache", true}};
  // An absent key means the family's default.
  if (config.own_head_size || family.head_size) {
    root["head_dim"] = config.head_size();
  }
  if (family.window) {
    root["sliding_window"] = nullptr;
  }
  if (family.some_layers_without_rope) {
    for (const RotarySettings& rope : LayerPlan(config).rope) {
      root["no_rope_layers"].push_back(rope.scaling == RotaryScaling::off ? 0 : 1);
    }
  }
  for (const auto& [key, value] : family.multipliers) {
    root[key] = config.multipliers.*value;
  }
  if (!config.eos_ids.empty()) {
    root["eos_token_id"] = eos_json(config);
  }
  return root;
}

std::string config_text(OrderedJson root, const RotarySettings& rope, DType stored) {
  name_rope(root, rope);
  const std::string name = dtype_name(stored);
  if (root.contains("dtype")) {
    root["dtype"] = name;  // Newer name of torch_dtype.
  }
  if (root.contains("torch_dtype") || !root.contains("dtype")) {
    root["torch_dtype"] = name;
  }
  return root.dump(2) + "\n";
}

std::uint64_t bytes_of(const ParameterEntry& entry, DType stored) {
  return storage_bytes(entry.shape.elements(), stored);
}

/// A tensor larger than `max_shard_bytes` gets its own shard.
std::vector<std::vector<SafetensorsTensor>> plan_shards(const ParameterTable& table,
                                                        const TensorValues& values, DType stored,
                                                        std::uint64_t max_shard_bytes) {
  std::vector<std::vector<SafetensorsTensor>> shards(1);
  std::uint64_t shard_bytes = 0;
  for (const ParameterEntry& entry : table.entries()) {
    SafetensorsTensor tensor{
        .name = entry.name, .shape = dims_of(entry.shape), .values = {}, .stored = stored};
    tensor.read = [&values, &entry] { return values(entry); };
    const std::uint64_t bytes = bytes_of(entry, stored);
    if (!shards.back().empty() && shard_bytes + bytes > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += bytes;
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

void write_weights(const fs::path& directory, const ParameterTable& table,
                   const std::vector<std::vector<SafetensorsTensor>>& shards, DType stored) {
  const std::map<std::string, std::string> metadata{
      {"format", "pt"}};  // Required by `transformers`.
  if (shards.size() == 1) {
    write_safetensors(directory / kHfWeightsFile, shards.front(), metadata);
    return;
  }
  OrderedJson weight_map = OrderedJson::object();
  std::uint64_t total_bytes = 0;
  for (std::size_t index = 0; index < shards.size(); ++index) {
    const std::string name =
        fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, shards.size());
    write_safetensors(directory / name, shards[index], metadata);
    for (const SafetensorsTensor& tensor : shards[index]) {
      weight_map[tensor.name] = name;
      total_bytes += bytes_of(table.entry(tensor.name), stored);
    }
  }
  const OrderedJson root{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  publish_file(directory / kHfIndexFile, root.dump(2) + "\n");
}

/// Returns the files to copy, as NAME or FOLDER/NAME, sorted; with `model` also what a model is
/// read from.
std::vector<fs::path> other_files(const fs::path& source_directory, bool model = false) {
  std::vector<fs::path> files;
  for (const auto& item : fs::directory_iterator(source_directory)) {
    const std::string name = item.path().filename().string();
    // Follows links, as in the Hugging Face cache.
    const bool read = name == "config.json" || name.find(".safetensors") != std::string::npos;
    if (item.is_regular_file() && !name.starts_with('.') && name != kChecksumsName &&
        name != kJacobiDecodingFile && (read ? model : !is_weight_file(name))) {
      files.emplace_back(name);
    }
  }
  // Named templates of transformers 5.
  constexpr const char* kTemplates = "additional_chat_templates";
  const fs::path folder = source_directory / kTemplates;
  if (fs::is_directory(folder) && !fs::is_symlink(folder)) {
    for (const auto& item : fs::directory_iterator(folder)) {
      if (item.is_regular_file() && item.path().extension() == ".jinja") {
        files.push_back(kTemplates / item.path().filename());
      }
    }
  }
  for (const fs::path& file : files) {
    (void)contained_file(source_directory, file.string());
    const fs::path path = source_directory / file;
    // checksums.json needs UTF-8 names.
    if (first_invalid_utf8(file.string())) {
      throw DataError(
          fmt::format("{}: holds a file whose name is not valid UTF-8 (\"{}\"); an export would "
                      "copy it, so rename or remove it",
                      source_directory.string(), replaced_utf8(file.string())));
    }
    if (::access(path.c_str(), R_OK) != 0) {
      throw EnvironmentError(fmt::format(
          "cannot read {}, which an export copies: {}; fix its permissions or remove it",
          path.string(), std::generic_category().message(errno)));
    }
  }
  std::ranges::sort(files);
  return files;
}

void copy_other_files(const fs::path& source_directory, const fs::path& directory) {
  for (const fs::path& file : other_files(source_directory)) {
    make_directory((directory / file).parent_path());
    publish_file(directory / file, read_file(source_directory / file));
  }
}

void write_custom_generate(const fs::path& directory, std::int32_t block_size,
                           const TemplateArguments& arguments) {
  const fs::path folder = directory / kCustomGenerateFolder;
  make_directory(folder);
  publish_file(folder / kCustomGenerateFile, custom_generate_source());
  write_jacobi_decoding(directory, block_size, arguments);
}

/// The output may only replace an earlier model or an empty directory.
void check_directories(const fs::path& source_directory, const fs::path& output_directory) {
  if (!fs::is_directory(source_directory)) {
    throw DataError(fmt::format("{}: no such model directory", source_directory.string()));
  }
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
      (fs::is_empty(output_directory) || fs::exists(output_directory / "config.json") ||
       fs::exists(output_directory / kChecksumsName));  // A damaged export may lack either.
  if (!replaceable) {
    throw ConfigError(fmt::format(
        "{}: exists and is not a model directory; name another output directory or remove it",
        output_directory.string()));
  }
}

/// The old directory takes the name of `fresh` or is removed.
void replace_directory(const fs::path& fresh, const fs::path& target) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    sync_directory(target.parent_path());
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) {
    throw EnvironmentError(fmt::format("cannot replace {}: {}", target.string(),
                                       std::generic_category().message(errno)));
  }
  // Network file systems cannot exchange. Until the new model is in place, the old one has a name
  // that no sweep removes.
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

/// After a link, ".." is not the link's own folder.
fs::path place_of(const fs::path& output) {
  const fs::path path = fs::absolute(output);
  const fs::path named = path.has_filename() ? path : path.parent_path();
  if (named.filename() == "." || named.filename() == "..") {
    return fs::weakly_canonical(named);
  }
  return fs::weakly_canonical(named.parent_path()) / named.filename();
}

/// Spares files younger than a day: another job may be exporting here.
void sweep_killed_exports(const fs::path& directory, const std::string& prefix) {
  const auto a_day_ago = fs::file_time_type::clock::now() - std::chrono::hours(24);
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(directory, failed)) {
    if (!entry.path().filename().string().starts_with(prefix)) {
      continue;
    }
    const fs::file_time_type written = fs::last_write_time(entry.path(), failed);
    if (!failed && written < a_day_ago) {
      fs::remove_all(entry.path(), failed);
    }
  }
}

/// `fill` writes all files but checksums.json.
void write_model_directory(const fs::path& source_directory, const fs::path& output_directory,
                           const std::function<void(const fs::path&)>& fill) {
  const fs::path target = place_of(output_directory);
  check_directories(source_directory, target);
  make_directory(target.parent_path());

  const std::string prefix = fmt::format(".tmp-{}-", target.filename().string());
  sweep_killed_exports(target.parent_path(), prefix);
  const TemporaryDirectory fresh(target.parent_path() / (prefix + temporary_suffix()));
  fill(fresh.path());
  write_checksums(fresh.path());
  sync_directory(fresh.path());

  if (fs::exists(target)) {
    replace_directory(fresh.path(), target);  // `fresh` then removes the old model.
  } else {
    commit_rename(fresh.path(), target);
  }
}

/// Turns file system errors into EnvironmentError.
void export_to(const fs::path& directory, const std::function<void()>& write) {
  try {
    write();
  } catch (const fs::filesystem_error& error) {
    throw EnvironmentError(
        fmt::format("cannot export the model to {}: {}", directory.string(), error.what()));
  }
}

}  // namespace

void expect_exportable(const fs::path& source_directory, const fs::path& output_directory) {
  export_to(output_directory, [&] {
    check_directories(source_directory, output_directory);
    (void)other_files(source_directory);
  });
}

void expect_only_an_export(const fs::path& output_directory) {
  export_to(output_directory, [&] {
    if (!fs::is_directory(output_directory)) {
      return;
    }
    std::vector<std::string> others = unlisted_files(output_directory);
    if (others.empty()) {
      return;
    }
    constexpr std::size_t kShown = 3;
    const std::string more = others.size() > kShown ? ", …" : "";
    others.resize(std::min(others.size(), kShown));
    throw ConfigError(
        fmt::format("{}: the model that is to be written there would replace {}{}, which its "
                    "checksums.json, if it is there and whole, does not list as an export's; name "
                    "another directory, or remove it first",
                    output_directory.string(), fmt::join(others, ", "), more));
  });
}

void export_hf_model(const fs::path& source_directory, const fs::path& output_directory,
                     const TransformerConfig& config, const ParameterTable& table,
                     const TensorValues& values, const HfExportOptions& options) {
  const DType stored = options.stored;
  export_to(output_directory, [&] {
    write_model_directory(source_directory, output_directory, [&](const fs::path& fresh) {
      copy_other_files(source_directory, fresh);
      write_weights(fresh, table, plan_shards(table, values, stored, options.max_shard_bytes),
                    stored);
      if (options.jacobi_block_size) {
        write_custom_generate(fresh, *options.jacobi_block_size, options.template_arguments);
      }
      name_stop_tokens(fresh, config);
      OrderedJson root = source_config(source_directory, config);
      publish_file(
          fresh / "config.json",
          config_text(root.is_null() ? new_config(config) : std::move(root), config.rope, stored));
    });
  });
}

void export_with_drafter(const fs::path& source_directory, const fs::path& output_directory,
                         const HfExportOptions& options,
                         const std::function<void(const fs::path&)>& write_drafter) {
  export_to(output_directory, [&] {
    write_model_directory(source_directory, output_directory, [&](const fs::path& fresh) {
      for (const fs::path& file : other_files(source_directory, true)) {
        make_directory((fresh / file).parent_path());
        publish_with(fresh / file, [&](const fs::path& copy) {
          fs::copy_file(source_directory / file, copy, fs::copy_options::overwrite_existing);
        });
      }
      write_drafter(fresh / kDrafterFolder);
      if (options.jacobi_block_size) {
        write_custom_generate(fresh, *options.jacobi_block_size, options.template_arguments);
      }
    });
  });
}

void export_new_hf_model(const fs::path& tokenizer_directory, const fs::path& output_directory,
                         const TransformerConfig& config, const ParameterTable& table,
                         const TensorValues& values, DType stored) {
  export_to(output_directory, [&] {
    write_model_directory(tokenizer_directory, output_directory, [&](const fs::path& fresh) {
      copy_other_files(tokenizer_directory, fresh);
      write_weights(fresh, table, plan_shards(table, values, stored, kMaxHfShardBytes), stored);
      publish_file(fresh / "config.json", config_text(new_config(config), config.rope, stored));
      const OrderedJson generation = {{"do_sample", false}, {"eos_token_id", eos_json(config)}};
      publish_file(fresh / kHfGenerationFile, generation.dump(2) + "\n");
    });
  });
}

}  // namespace jforge
