#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace jforge {

/// Returns the bytes that this process may still allocate: MemAvailable, or less if a control group
/// (version 1 or 2) limits it, not counting reclaimable page cache. Empty if unknown. `root`
/// prefixes all paths, for tests.
[[nodiscard]] std::optional<std::uint64_t> available_memory(
    const std::filesystem::path& root = "/");

}  // namespace jforge
