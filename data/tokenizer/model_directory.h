#pragma once

/// Checks on Hugging Face model directories.

#include <filesystem>
#include <string_view>

namespace jforge {

/// Throws DataError unless `path` is a model directory. Messages tell apart missing paths, files,
/// names of hub models ("Qwen/Qwen2.5-0.5B-Instruct", also under "models/"), and directories
/// without config.json and tokenizer that are a run, a checkpoint, the hub's cache, GGUF files or a
/// PEFT adapter.
void expect_model_directory(const std::filesystem::path& path);

/// Throws DataError if there is an adapter_config.json: transformers would load the model that it
/// names and apply the adapter, whatever weights are in the directory.
void expect_no_adapter(const std::filesystem::path& directory);

/// Throws DataError if `bytes`, the beginning of `file`, are a Git LFS pointer, which a clone
/// without git-lfs leaves in place of a large file.
void expect_no_lfs_pointer(const std::filesystem::path& file, std::string_view bytes);

}  // namespace jforge
