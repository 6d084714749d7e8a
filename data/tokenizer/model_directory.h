#pragma once

/// What every reader of a Hugging Face directory asks first.

#include <filesystem>
#include <string_view>

namespace jforge {

/// Throws DataError unless `path` is a directory: one that does not exist is told apart from a
/// file, and from a model of the Hugging Face hub ("Qwen/Qwen2.5-0.5B-Instruct", or
/// "models/Qwen2.5-0.5B-Instruct", where the documents put it), which has to be downloaded first.
/// So are directories that hold neither config.json nor a tokenizer, but something else that goes
/// by the name of a model: a run, a checkpoint, the hub's cache, GGUF files, a PEFT adapter.
void expect_model_directory(const std::filesystem::path& path);

/// Throws DataError where adapter_config.json is among the files: transformers would load the
/// model that it names and add the adapter, whatever weights lie beside it.
void expect_no_adapter(const std::filesystem::path& directory);

/// Throws DataError where `bytes`, the beginning of `file`, are a Git LFS pointer: what a clone
/// without git-lfs leaves in place of a large file.
void expect_no_lfs_pointer(const std::filesystem::path& file, std::string_view bytes);

}  // namespace jforge
