#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace jforge {

/// Returns the files that `patterns` match, without duplicates, in pattern order and sorted by
/// bytes within one. Supports `*`, `?`, `[…]`, `{a,b}` and `**` for any number of visible
/// directories; does not follow link cycles. Throws DataError if a pattern matches nothing or a
/// directory.
[[nodiscard]] std::vector<std::filesystem::path> match_files(
    const std::vector<std::string>& patterns);

}  // namespace jforge
