#pragma once

/// Files in a directory that somebody else made (a model directory): what is read there must be a
/// plain file that lies there. Nothing here blocks on what is none.

#include <filesystem>
#include <string_view>

namespace jforge {

/// Throws DataError naming `path` and what it is when it exists and is no regular file (links are
/// followed): a directory, a FIFO, a socket or a device, which would block or never end when read.
void refuse_special_file(const std::filesystem::path& path);

/// `directory / name`, ready to be opened; whether it exists is for the opening to say. DataError
/// naming the file when it is no regular file, or a symbolic link to nothing or out of the
/// directory: such a link would bring any file of the reader's into a run and its exports. In the
/// cache of huggingface_hub (`models--NAME/snapshots/REVISION`) links may lead anywhere within
/// `models--NAME`, whose files are all links to `../../blobs`.
[[nodiscard]] std::filesystem::path contained_file(const std::filesystem::path& directory,
                                                   std::string_view name);

/// Whether `directory` holds `name`; checked like contained_file.
[[nodiscard]] bool holds_contained_file(const std::filesystem::path& directory,
                                        std::string_view name);

}  // namespace jforge
