#pragma once

/// Imports and exports Hugging Face model directories of the families of ModelFamily.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "data/tokenizer/chat_template.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/transformer_config.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Reads config.json (architectures or model_type must name a ModelFamily) and the eos ids
/// (generation_config.json's, else config.json's eos_token_id). Rejects unsupported features: rope
/// scaling other than linear and llama3, sliding windows shorter than the positions, biases foreign
/// to the family, other activations, quantisation. Throws DataError naming file and key.
[[nodiscard]] TransformerConfig read_hf_config(const std::filesystem::path& model_directory);

/// Fills the flat float32 vector of `table` from model.safetensors or its sharded index, after
/// verifying checksums.json (directory_checksums.h) if there is one. Throws DataError naming a
/// tensor that is missing, unknown or of the wrong shape. Ignores rotary inv_freq buffers, and a
/// tied model's lm_head if it equals the embedding.
void load_hf_weights(const std::filesystem::path& model_directory, const TransformerConfig& config,
                     const ParameterTable& table, TensorView flat);
/// Collective over `comm`: rank 0 reads and broadcasts group by group, so only rank 0 needs the
/// directory. All ranks throw DataError if rank 0 cannot read.
void load_hf_weights(const Communicator& comm, const std::filesystem::path& model_directory,
                     const TransformerConfig& config, const ParameterTable& table, TensorView flat);

/// The open weight files of a model directory, for reading one tensor at a time.
class HfTensors {
 public:
  /// Requires: `table` outlives this object. Throws as load_hf_weights(), but read() reports a
  /// missing tensor or a wrong shape.
  HfTensors(const std::filesystem::path& model_directory, const TransformerConfig& config,
            const ParameterTable& table);
  ~HfTensors();
  HfTensors(const HfTensors&) = delete;
  HfTensors& operator=(const HfTensors&) = delete;
  /// Returns a host tensor, valid until the next call: float32 or bfloat16 in the mapped file, or a
  /// float32 copy if it is float16 or unaligned.
  [[nodiscard]] ConstTensorView read(const ParameterEntry& entry);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns whether the weight files hold every matrix as bfloat16; reads only their headers.
/// Returns false if there are none yet. Throws DataError as load_hf_weights() if they are damaged.
[[nodiscard]] bool hf_matrices_are_bfloat16(const std::filesystem::path& model_directory);

/// Returns the model's identity for runs and manifests: a hex hash over the bytes of config.json,
/// generation_config.json (if present) and the weight files.
[[nodiscard]] std::string hf_model_hash(const std::filesystem::path& model_directory);

/// Returns a tensor's float32 values, valid until the next call. Called once per tensor, in the
/// table's order.
using TensorValues = std::function<std::span<const float>(const ParameterEntry&)>;
/// Returns values from the table's flat float32 vector in host memory.
[[nodiscard]] TensorValues values_in(ConstTensorView flat);

/// Default limit of a weight file in bytes; larger exports are sharded.
inline constexpr std::uint64_t kMaxHfShardBytes = 5'000'000'000;

struct HfExportOptions {
  DType stored = DType::float32;  ///< Type of the stored weights.
  /// Block size of a model that decodes by Jacobi iteration. The directory then gets
  /// jacobi_decoding.json with that size, and custom_generate/generate.py for stock `transformers`.
  std::optional<std::int32_t> jacobi_block_size = {};
  /// Template arguments of the training; written to jacobi_decoding.json if there is one.
  TemplateArguments template_arguments = {};
  std::uint64_t max_shard_bytes = kMaxHfShardBytes;
};

/// Durably writes an HF directory: weights (model.safetensors, or shards with an index above
/// `max_shard_bytes`), config.json with the weights' dtype, the other top-level and
/// additional_chat_templates files of `source_directory`, and checksums.json
/// (directory_checksums.h) over all. Copies are unchanged, except that generation_config.json gains
/// missing stop tokens. Weight files in any format are left out. Without config.json in the source
/// (a tokenizer alone), one is written from `config`. Replaces an earlier model by rename. Throws
/// DataError if config.json describes another model, and ConfigError if the output is the source or
/// exists but is not a model directory.
void export_hf_model(const std::filesystem::path& source_directory,
                     const std::filesystem::path& output_directory, const TransformerConfig& config,
                     const ParameterTable& table, const TensorValues& values,
                     const HfExportOptions& options);

/// Throws the errors of export_hf_model() about these directories, before there is a model to
/// export.
void expect_exportable(const std::filesystem::path& source_directory,
                       const std::filesystem::path& output_directory);
/// Throws ConfigError if the user's `output_directory` holds files that no export wrote, because
/// the next export would replace them.
void expect_only_an_export(const std::filesystem::path& output_directory);

/// As export_hf_model() for a new model (pre-training): writes config.json and
/// generation_config.json from `config` and copies all files but weights from
/// `tokenizer_directory`.
void export_new_hf_model(const std::filesystem::path& tokenizer_directory,
                         const std::filesystem::path& output_directory,
                         const TransformerConfig& config, const ParameterTable& table,
                         const TensorValues& values, DType stored);

}  // namespace jforge
