#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace jforge {

/// Returns the files that `patterns` match, without duplicates, in pattern order and sorted by
/// bytes within a pattern. Supports a shell's `*`, `?`, `[…]` and `{a,b}`; the path component `**`
/// matches any number of visible directories, as in Python's recursive glob. Link cycles are not
/// followed. Throws DataError if a pattern matches nothing or a directory.
[[nodiscard]] std::vector<std::filesystem::path> match_files(
    const std::vector<std::string>& patterns);

}  // namespace jforge
