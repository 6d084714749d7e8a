#pragma once

/// The files that patterns of a configuration stand for.

#include <filesystem>
#include <string>
#include <vector>

namespace jforge {

/// Files that `patterns` match, each once, in the order of the patterns and sorted by bytes within
/// one. `*`, `?`, `[…]` and `{a,b}` are as in a shell; `**` as a whole part of a path matches zero
/// or more directories, none that is hidden, as Python's glob does with recursive=True. A link that
/// leads back into the directories above it is not followed. DataError naming a pattern that
/// matches nothing, or a directory.
[[nodiscard]] std::vector<std::filesystem::path> match_files(
    const std::vector<std::string>& patterns);

}  // namespace jforge
