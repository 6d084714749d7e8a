#pragma once

/// An adapter's files, in PEFT's form: adapter_config.json and adapter_model.safetensors, in the
/// folder `drafter` of the directory of the model that it is for. The model's files stay as they
/// are. PEFT would apply the additions to every row; only rows that draft may have them.

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "checkpoints/hf_model.h"
#include "model/transformer/adapter.h"
#include "model/transformer/inference_transformer.h"

namespace jforge {

inline constexpr const char* kDrafterFolder = "drafter";

/// Reads an adapter's weights one tensor at a time.
class PeftAdapter {
 public:
  /// `directory` holds the two files. Throws DataError naming file and key, or tensor, for anything
  /// but a plain LoRA of the model's projections.
  PeftAdapter(const std::filesystem::path& directory, const TransformerConfig& model);
  ~PeftAdapter();
  PeftAdapter(const PeftAdapter&) = delete;
  PeftAdapter& operator=(const PeftAdapter&) = delete;

  [[nodiscard]] const ParameterTable& table() const noexcept;
  /// For an InferenceTransformer; refers to this object. Values are float32, valid until the next
  /// read.
  [[nodiscard]] const AdapterSource& source() const noexcept;
  /// Hex hash of the weights and their scale.
  [[nodiscard]] std::string hash() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] bool has_drafter(const std::filesystem::path& model_directory);

/// Returns the adapter in `model_directory`/drafter; null if there is none.
[[nodiscard]] std::unique_ptr<PeftAdapter> find_drafter(
    const std::filesystem::path& model_directory, const TransformerConfig& model);

/// Returns the adapter for decoding by `method`, null unless the method needs one. Throws
/// ConfigError if it does and the model in `directory` has none.
[[nodiscard]] const AdapterSource* drafter_for(std::string_view method, bool needed,
                                               const PeftAdapter* drafter,
                                               const std::filesystem::path& directory);

/// Durably writes both files to a new folder `directory`.
void write_peft_adapter(const std::filesystem::path& directory, const AdapterShape& shape,
                        const ParameterTable& table, const TensorValues& values);

/// Durably writes copies of the model's files and `write_drafter`'s folder, with checksums.json,
/// and, if `options` have a block size, jacobi_decoding.json and custom_generate/generate.py
/// (`options` mean nothing else here). Replaces and refuses as export_hf_model().
void export_with_drafter(
    const std::filesystem::path& source_directory, const std::filesystem::path& output_directory,
    const HfExportOptions& options,
    const std::function<void(const std::filesystem::path& folder)>& write_drafter);

}  // namespace jforge
