#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace jforge {

/// Returns the bytes that this process may still allocate: MemAvailable of /proc/meminfo, or less
/// if a control group (version 1 or 2) limits memory. Reclaimable page cache does not count as
/// used. Empty if the kernel reports neither. `root` is a prefix of all paths, for tests.
[[nodiscard]] std::optional<std::uint64_t> available_memory(
    const std::filesystem::path& root = "/");

}  // namespace jforge
