#pragma once

/// Reads from directories of foreign origin (models): only regular files inside them. Never blocks.

#include <filesystem>
#include <string_view>

namespace jforge {

/// Throws DataError if `path` exists but is not regular: a FIFO, socket or device could block.
void refuse_special_file(const std::filesystem::path& path);

/// Returns `directory / name`, which need not exist. Throws DataError for a special file and for a
/// symbolic link that dangles or leaves the directory, because it could bring any of the user's
/// files into a run and its exports. In huggingface_hub's cache (`models--NAME/snapshots/REVISION`)
/// links may lead anywhere within `models--NAME`, because its files link to `../../blobs`.
[[nodiscard]] std::filesystem::path contained_file(const std::filesystem::path& directory,
                                                   std::string_view name);

/// Returns whether the file exists, after the same checks.
[[nodiscard]] bool holds_contained_file(const std::filesystem::path& directory,
                                        std::string_view name);

}  // namespace jforge
