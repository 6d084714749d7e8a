#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoints/directory_checksums.h"
#include "checkpoints/drafter_files.h"
#include "checkpoints/hf_files_internal.h"
#include "checkpoints/hf_model.h"
#include "checkpoints/safetensors.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kHead = "lm_head.weight";

/// A single file takes precedence over an index, as in `transformers`.
struct WeightFiles {
  std::map<std::string, SafetensorsFile> files;  ///< By name.
  std::map<std::string, std::string> file_of;    ///< Tensor name to file name.
};

/// File names are untrusted and must stay in the directory.
std::map<std::string, std::string> read_index(const fs::path& directory) {
  const HfJsonFile index(directory / kHfIndexFile);
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

std::set<std::string> weight_file_names(const fs::path& directory) {
  if (hf_file_present(directory / kHfWeightsFile)) {
    return {kHfWeightsFile};
  }
  if (!hf_file_present(directory / kHfIndexFile)) {
    const bool pickled = fs::exists(directory / "pytorch_model.bin") ||
                         fs::exists(directory / "pytorch_model.bin.index.json");
    throw DataError(fmt::format("{}: neither {} nor {} is there; {}", directory.string(),
                                kHfWeightsFile, kHfIndexFile,
                                pickled ? "pytorch_model.bin is not read: load the model with "
                                          "transformers and save it (save_pretrained) anew"
                                        : "a model needs one of them"));
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
    weights.files.emplace(name, SafetensorsFile(checked_hf_file(directory / name)));
  }
  const bool sharded = !weights.files.contains(kHfWeightsFile);
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
                                    directory.string(), tensor, name, kHfIndexFile));
      }
    }
  }
  return weights;
}

/// Returns the files on which a model's answers depend.
std::vector<std::string> hashed_files(const fs::path& directory) {
  std::set<std::string> names = weight_file_names(directory);
  // Its eos ids affect every answer.
  if (hf_file_present(directory / kHfGenerationFile)) {
    names.insert(kHfGenerationFile);
  }
  std::vector<std::string> files{"config.json"};
  files.insert(files.end(), names.begin(), names.end());
  return files;
}

/// Zero for files outside `share`.
std::vector<std::int64_t> file_hashes(const fs::path& directory,
                                      const std::vector<std::string>& names, FileShare share) {
  std::vector<std::int64_t> hashes(names.size(), 0);
  for (std::size_t i = share.first; i < names.size(); i += share.of) {
    hashes[i] = static_cast<std::int64_t>(hash_file(checked_hf_file(directory / names[i])));
  }
  return hashes;
}

std::string listing_hash(const std::vector<std::string>& names,
                         const std::vector<std::int64_t>& hashes) {
  std::string listing;
  for (std::size_t i = 0; i < names.size(); ++i) {
    listing += fmt::format("{} {}\n", names[i], hash_hex(static_cast<std::uint64_t>(hashes[i])));
  }
  return hash_hex(hash64(listing));
}

}  // namespace

struct HfTensors::State {
  /// Checks the weight files against the table before any value is read.
  State(const fs::path& directory, const TransformerConfig& config, const ParameterTable& table,
        FileShare checked)
      : directory_(directory), table_(table) {
    static_cast<void>(check_checksums(directory, checked));
    weights_ = open_weights(directory);
    std::set<std::string_view> known;
    for (const ParameterEntry& entry : table.entries()) {
      known.insert(entry.name);
    }
    for (const auto& [tensor, file] : weights_.file_of) {
      const bool harmless = tensor.ends_with("rotary_emb.inv_freq") ||
                            (config.tie_word_embeddings && tensor == kHead);
      if (!known.contains(tensor) && !harmless) {
        throw DataError(fmt::format("{}: tensor {} is not part of a {} of this configuration",
                                    (directory / file).string(), tensor,
                                    traits_of(config.family).architecture));
      }
    }
    if (config.tie_word_embeddings && weights_.file_of.contains(kHead)) {
      expect_head_is_embedding();
    }
  }

  void read(const ParameterEntry& entry, std::span<float> values) const {
    file_of(entry).read_float32(entry.name, dims_of(entry.shape), values);
  }
  [[nodiscard]] ConstTensorView mapped(const ParameterEntry& entry) const {
    return file_of(entry).mapped(entry.name, entry.shape);
  }

  /// `transformers` 4 uses the embedding and 5 the head, so a difference is ambiguous.
  void expect_head_is_embedding() const {
    const ParameterEntry& embedding = table_.entry("model.embed_tokens.weight");
    const std::string& file = weights_.file_of.at(kHead);
    const SafetensorsFile& head_file = weights_.files.at(file);
    const ConstTensorView head = head_file.mapped(kHead, embedding.shape);
    const ConstTensorView tied = mapped(embedding);
    bool same = false;
    if (!head.empty() && !tied.empty() && head.dtype() == tied.dtype()) {
      same = std::memcmp(head.raw(), tied.raw(), tied.bytes()) == 0;
    } else {
      std::vector<float> values(static_cast<std::size_t>(embedding.shape.elements()));
      std::vector<float> others(values.size());
      read(embedding, values);
      head_file.read_float32(kHead, dims_of(embedding.shape), others);
      same = values == others;
    }
    if (!same) {
      throw DataError(
          fmt::format("{}: {} differs from {}, and config.json says tie_word_embeddings; say false "
                      "there, or take the tensor out",
                      (directory_ / file).string(), kHead, embedding.name));
    }
  }
  [[nodiscard]] const SafetensorsFile& file_of(const ParameterEntry& entry) const {
    const auto found = weights_.file_of.find(entry.name);
    if (found == weights_.file_of.end()) {
      throw DataError(fmt::format("{}: tensor {} is missing from the model's weights",
                                  directory_.string(), entry.name));
    }
    return weights_.files.at(found->second);
  }

  fs::path directory_;
  const ParameterTable& table_;
  WeightFiles weights_;
  std::vector<float> values_;  ///< Of a tensor that cannot be mapped.
};

HfTensors::HfTensors(const fs::path& model_directory, const TransformerConfig& config,
                     const ParameterTable& table, FileShare checked)
    : state_(std::make_unique<State>(model_directory, config, table, checked)) {}

HfTensors::~HfTensors() = default;

ConstTensorView HfTensors::read(const ParameterEntry& entry) {
  const ConstTensorView mapped = state_->mapped(entry);
  if (!mapped.empty()) {
    return mapped;
  }
  state_->values_.resize(static_cast<std::size_t>(entry.shape.elements()));
  state_->read(entry, state_->values_);
  return {state_->values_.data(), entry.shape};
}

void HfTensors::read(const ParameterEntry& entry, std::int64_t begin, std::span<float> target) {
  const ConstTensorView part =
      read(entry).reshaped({entry.shape.elements()}).rows(begin, begin + std::ssize(target));
  if (part.dtype() == DType::float32) {
    std::ranges::copy(part.span<float>(), target.begin());
  } else {
    std::ranges::transform(part.span<BFloat16>(), target.begin(), to_float);
  }
}

HfModel::HfModel(const fs::path& directory, FileShare checked)
    : config(read_hf_config(directory)),
      table(config, 1),
      tensors(directory, config, table, checked),
      drafter(find_drafter(directory, config)) {}

HfModel::~HfModel() = default;

std::unique_ptr<HfModel> open_hf_model(const Communicator& comm, const fs::path& directory) {
  std::unique_ptr<HfModel> model;
  together(comm, [&] { model = std::make_unique<HfModel>(directory, share_of(comm)); });
  return model;
}

bool hf_matrices_are_bfloat16(const fs::path& model_directory) {
  if (!hf_file_present(model_directory / kHfWeightsFile) &&
      !hf_file_present(model_directory / kHfIndexFile)) {
    return false;
  }
  const WeightFiles weights = open_weights(model_directory);
  return std::ranges::all_of(weights.files, [](const auto& file) {
    return std::ranges::all_of(file.second.entries(), [](const auto& tensor) {
      return tensor.second.shape.size() != 2 || tensor.second.dtype == DType::bfloat16;
    });
  });
}

std::string hf_model_hash(const fs::path& model_directory) {
  const std::vector<std::string> names = hashed_files(model_directory);
  return listing_hash(names, file_hashes(model_directory, names, {}));
}

std::string hf_model_hash(const Communicator& comm, const fs::path& model_directory) {
  std::vector<std::string> names;
  std::vector<std::int64_t> hashes;
  together(comm, [&] {
    names = hashed_files(model_directory);
    hashes = file_hashes(model_directory, names, share_of(comm));
  });
  all_reduce_sum<std::int64_t>(comm, hashes);
  return listing_hash(names, hashes);
}

}  // namespace jforge
