#pragma once

/// Hugging Face model directories: import of the families of ModelFamily, and export that keeps
/// config and tokenizer files.

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

/// Reads config.json (architectures or model_type of a ModelFamily, else refused by name) and the
/// eos ids (generation_config.json's list, else config.json's eos_token_id). Refuses what we do not
/// compute: rope scaling other than linear and llama3, sliding windows shorter than the positions,
/// biases that a family need not have, other activations, quantisation. Throws DataError naming
/// file and key.
[[nodiscard]] TransformerConfig read_hf_config(const std::filesystem::path& model_directory);

/// Fills the flat float32 vector of `table` from model.safetensors or the sharded index. Missing
/// tensors, wrong shapes and, for untied heads, a missing lm_head are DataErrors naming the tensor;
/// unknown tensors are refused by name too (except rotary inv_freq buffers, and a redundant lm_head
/// of a tied model). A directory with checksums.json (directory_checksums.h) is compared with it
/// first.
void load_hf_weights(const std::filesystem::path& model_directory, const TransformerConfig& config,
                     const ParameterTable& table, TensorView flat);
/// Collective over `comm`: rank 0 reads, group by group, and every group is broadcast. What rank 0
/// cannot read is everybody's DataError; the others need not see the directory.
void load_hf_weights(const Communicator& comm, const std::filesystem::path& model_directory,
                     const TransformerConfig& config, const ParameterTable& table, TensorView flat);

/// The weight files of a model directory, open: tensors are had one at a time, so that nobody need
/// hold all of them.
class HfTensors {
 public:
  /// Errors as load_hf_weights(), but that of a tensor which is missing or of another shape comes
  /// when it is read. `table` must outlive the object.
  HfTensors(const std::filesystem::path& model_directory, const TransformerConfig& config,
            const ParameterTable& table);
  ~HfTensors();
  HfTensors(const HfTensors&) = delete;
  HfTensors& operator=(const HfTensors&) = delete;
  /// Of host memory, float32 or bfloat16, valid until the next call: where the file is mapped, or
  /// widened from float16.
  [[nodiscard]] ConstTensorView read(const ParameterEntry& entry);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether the weight files hold every matrix as bfloat16; only their headers are read. False where
/// there are no weight files yet. Throws DataError as load_hf_weights for files that are damaged.
[[nodiscard]] bool hf_matrices_are_bfloat16(const std::filesystem::path& model_directory);

/// Identity of a model for runs and manifests: hash over the bytes of config.json,
/// generation_config.json (where there is one) and the weight files, hex.
[[nodiscard]] std::string hf_model_hash(const std::filesystem::path& model_directory);

/// float32 values of a tensor of a table. Asked for each once, in the table's order; valid until
/// the next.
using TensorValues = std::function<std::span<const float>(const ParameterEntry&)>;
/// Of the flat float32 vector of the table, on the host.
[[nodiscard]] TensorValues values_in(ConstTensorView flat);

/// Bound above which exported weights are sharded.
inline constexpr std::uint64_t kMaxHfShardBytes = 5'000'000'000;

struct HfExportOptions {
  DType stored = DType::float32;  ///< Of the weights.
  /// Of a model that decodes by Jacobi iteration, n: the directory gets
  /// custom_generate/generate.py, with which stock `transformers` does, and jacobi_decoding.json,
  /// which tells it n.
  std::optional<std::int32_t> jacobi_block_size = {};
  /// The template arguments that the model was trained with; written to jacobi_decoding.json.
  TemplateArguments template_arguments = {};
  std::uint64_t max_shard_bytes = kMaxHfShardBytes;
};

/// Writes an HF directory: weights as `options.stored` (single model.safetensors, or sharded with
/// an index past `max_shard_bytes`), config with torch_dtype set accordingly, and every other
/// config, tokenizer and template file copied from `source_directory` unchanged (top-level files
/// and additional_chat_templates; weight files in any format are left out), and checksums.json over
/// them all (directory_checksums.h). A source without config.json (a tokenizer alone) gets one
/// written from `config`; a config.json that describes another model is a DataError. Durable; a
/// directory that exists complete is replaced by rename; one that is no model directory, or the
/// source itself, is refused with ConfigError.
void export_hf_model(const std::filesystem::path& source_directory,
                     const std::filesystem::path& output_directory, const TransformerConfig& config,
                     const ParameterTable& table, const TensorValues& values,
                     const HfExportOptions& options);

/// Throws what export_hf_model would of these directories, before there is anything to export.
void expect_exportable(const std::filesystem::path& source_directory,
                       const std::filesystem::path& output_directory);
/// ConfigError where `output_directory`, which somebody has named, holds anything but what an
/// export has written: the next would take it away with the earlier model.
void expect_only_an_export(const std::filesystem::path& output_directory);

/// As export_hf_model for a model that has no directory yet (pre-training): config.json and
/// generation_config.json are written from `config`, every other file but weights is copied from
/// `tokenizer_directory`.
void export_new_hf_model(const std::filesystem::path& tokenizer_directory,
                         const std::filesystem::path& output_directory,
                         const TransformerConfig& config, const ParameterTable& table,
                         const TensorValues& values, DType stored);

}  // namespace jforge
