#pragma once

/// What every reader of a Hugging Face directory asks first.

#include <filesystem>

namespace jforge {

/// Throws DataError unless `path` is a directory: one that does not exist is told apart from a
/// file, and from a name on the Hugging Face hub ("Qwen/Qwen2.5-0.5B-Instruct"), which has to be
/// downloaded first.
void expect_model_directory(const std::filesystem::path& path);

}  // namespace jforge
