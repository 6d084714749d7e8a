#pragma once

/// How much memory this process may still take.

#include <cstdint>
#include <filesystem>
#include <optional>

namespace jforge {

/// Bytes: MemAvailable of /proc/meminfo, or less where a control group (version 2) of this process
/// has a memory limit: the limit less what is used, the page cache that can be given up not
/// counted. Empty where the kernel tells neither. `root` stands before every path, for tests.
[[nodiscard]] std::optional<std::uint64_t> available_memory(
    const std::filesystem::path& root = "/");

}  // namespace jforge
