#pragma once

#include <filesystem>
#include <string_view>

namespace jforge {

/// Throws DataError unless `path` is a directory, or if it has neither config.json nor a tokenizer
/// but is recognised as something else. Messages tell apart files, names of hub models
/// ("Qwen/Qwen2.5-0.5B-Instruct", also under "models/"), runs, checkpoints, the hub's cache, GGUF
/// files and PEFT adapters.
void expect_model_directory(const std::filesystem::path& path);

/// Throws DataError if there is an adapter_config.json: transformers would load the model that it
/// names and apply the adapter.
void expect_no_adapter(const std::filesystem::path& directory);

/// Throws DataError if `file` begins with a Git LFS pointer, which clones without git-lfs leave in
/// place of large files.
void expect_no_lfs_pointer(const std::filesystem::path& file, std::string_view bytes);

}  // namespace jforge
