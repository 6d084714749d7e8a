#pragma once

/// Imports and exports Hugging Face model directories.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "checkpoints/directory_checksums.h"
#include "data/tokenizer/chat_template.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/transformer_config.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Reads config.json and the eos ids (generation_config.json's, else config.json's). Throws
/// DataError naming file and key for an unknown family or an unsupported feature: rope scaling
/// other than linear and llama3, short sliding windows, biases foreign to the family, other
/// activations, quantisation.
[[nodiscard]] TransformerConfig read_hf_config(const std::filesystem::path& model_directory);

/// Reads weight files one tensor at a time.
class HfTensors {
 public:
  /// Requires: `table` outlives this object. Compares the files of `checked` with checksums.json,
  /// if there is one. Throws DataError, in part from read(), naming a tensor that is missing,
  /// unknown or misshapen. Ignores rotary inv_freq buffers, and a tied model's lm_head if it equals
  /// the embedding.
  HfTensors(const std::filesystem::path& model_directory, const TransformerConfig& config,
            const ParameterTable& table, FileShare checked = {});
  ~HfTensors();
  HfTensors(const HfTensors&) = delete;
  HfTensors& operator=(const HfTensors&) = delete;
  /// Returns host memory, valid until the next call: the mapped float32 or bfloat16 tensor, or a
  /// float32 copy of a float16 or unaligned one.
  [[nodiscard]] ConstTensorView read(const ParameterEntry& entry);
  /// Copies elements of the flattened tensor from `begin` on, as float32.
  void read(const ParameterEntry& entry, std::int64_t begin, std::span<float> target);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class DrafterFiles;

/// A model directory whose weights are read on demand.
struct HfModel {
  explicit HfModel(const std::filesystem::path& directory, FileShare checked = {});
  HfModel(const HfModel&) = delete;
  HfModel& operator=(const HfModel&) = delete;
  ~HfModel();

  TransformerConfig config;
  ParameterTable table;
  HfTensors tensors;
  std::unique_ptr<DrafterFiles> drafter;  ///< find_drafter(): null if it has none.
};
/// Collective. Every rank maps the files and compares its share of them with their checksums.
[[nodiscard]] std::unique_ptr<HfModel> open_hf_model(const Communicator& comm,
                                                     const std::filesystem::path& directory);

/// Reads only the file headers; false without weight files. Throws DataError if damaged.
[[nodiscard]] bool hf_matrices_are_bfloat16(const std::filesystem::path& model_directory);

/// Hex hash over config.json, generation_config.json (if present) and the weight files.
[[nodiscard]] std::string hf_model_hash(const std::filesystem::path& model_directory);
/// Collective; the ranks share the files.
[[nodiscard]] std::string hf_model_hash(const Communicator& comm,
                                        const std::filesystem::path& model_directory);

/// Returns float32 values, valid until the next call. Called once per tensor, in table order.
using TensorValues = std::function<std::span<const float>(const ParameterEntry&)>;

inline constexpr std::uint64_t kMaxHfShardBytes = 5'000'000'000;

struct HfExportOptions {
  DType stored = DType::float32;
  /// Adds jacobi_decoding.json, and custom_generate/generate.py for stock `transformers`.
  std::optional<std::int32_t> jacobi_block_size = {};
  /// The training's, stored in jacobi_decoding.json.
  TemplateArguments template_arguments = {};
  std::uint64_t max_shard_bytes = kMaxHfShardBytes;
};

/// Durably writes weights (sharded above `max_shard_bytes`), config.json, checksums.json and copies
/// of the source's other files: top-level non-weight files and additional_chat_templates.
/// generation_config.json gains missing stop tokens; a missing config.json is written from
/// `config`. Replaces an earlier model by rename. Throws DataError if config.json describes another
/// model, and ConfigError if the output is the source or not a model directory.
void export_hf_model(const std::filesystem::path& source_directory,
                     const std::filesystem::path& output_directory, const TransformerConfig& config,
                     const ParameterTable& table, const TensorValues& values,
                     const HfExportOptions& options);

/// Throws as export_hf_model() for unsuitable directories, before there is a model.
void expect_exportable(const std::filesystem::path& source_directory,
                       const std::filesystem::path& output_directory);
/// Throws ConfigError if `output_directory` holds files that no export wrote.
void expect_only_an_export(const std::filesystem::path& output_directory);

/// As export_hf_model() for a pre-trained model: writes config.json and generation_config.json from
/// `config` and copies the other non-weight files from `tokenizer_directory`.
void export_new_hf_model(const std::filesystem::path& tokenizer_directory,
                         const std::filesystem::path& output_directory,
                         const TransformerConfig& config, const ParameterTable& table,
                         const TensorValues& values, DType stored);

}  // namespace jforge
