#pragma once

/// A drafter's files, in the folder `drafter` of the directory of the model that it is for, whose
/// own files stay as they are: an adapter's in PEFT's form (adapter_config.json and
/// adapter_model.safetensors; PEFT would apply the additions to every row, but only rows that draft
/// may have them), a head's in DFlash's (config.json of a DFlashDraftModel and model.safetensors;
/// embedding and head are the model's).

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "checkpoints/hf_model.h"
#include "model/transformer/drafter.h"
#include "model/transformer/inference_transformer.h"

namespace jforge {

inline constexpr const char* kDrafterFolder = "drafter";

/// Reads a drafter's weights one tensor at a time.
class DrafterFiles {
 public:
  /// `directory` holds the two files. Throws DataError naming file and key, or tensor, for anything
  /// but a plain LoRA of the model's projections, or a causal head of the model's sizes.
  DrafterFiles(const std::filesystem::path& directory, const TransformerConfig& model);
  ~DrafterFiles();
  DrafterFiles(const DrafterFiles&) = delete;
  DrafterFiles& operator=(const DrafterFiles&) = delete;

  [[nodiscard]] const ParameterTable& table() const noexcept;
  /// For an InferenceTransformer; refers to this object. Values are float32, valid until the next
  /// read.
  [[nodiscard]] const DrafterSource& source() const noexcept;
  /// Hex hash of the weights and of the shape as far as it matters.
  [[nodiscard]] std::string hash() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] bool has_drafter(const std::filesystem::path& model_directory);
[[nodiscard]] bool has_head(const std::filesystem::path& model_directory);

/// Returns the drafter in `model_directory`/drafter; null if there is none.
[[nodiscard]] std::unique_ptr<DrafterFiles> find_drafter(
    const std::filesystem::path& model_directory, const TransformerConfig& model);

/// Returns the drafter for decoding by `method`, null unless the method needs one. Throws
/// ConfigError if the model in `directory` lacks what it needs.
[[nodiscard]] const DrafterSource* drafter_for(std::string_view method, DrafterNeed need,
                                               const DrafterFiles* drafter,
                                               const std::filesystem::path& directory);

/// Durably writes both files to a new folder `directory`, for the model in `model_directory`. A
/// head of a completed() shape was trained with blocks of `block_size`.
void write_drafter(const std::filesystem::path& directory,
                   const std::filesystem::path& model_directory, const DrafterShape& shape,
                   std::int32_t block_size, const ParameterTable& table,
                   const TensorValues& values);

/// Durably writes copies of the model's files and `write_drafter`'s folder, with checksums.json,
/// and, if `options` have a block size, jacobi_decoding.json and custom_generate/generate.py
/// (`options` mean nothing else here). Replaces and refuses as export_hf_model().
void export_with_drafter(
    const std::filesystem::path& source_directory, const std::filesystem::path& output_directory,
    const HfExportOptions& options,
    const std::function<void(const std::filesystem::path& folder)>& write_drafter);

}  // namespace jforge
