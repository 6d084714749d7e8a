#pragma once

/// What lies under a path that `verify` and `inspect` are asked about.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace jforge {

enum class Artefact : std::uint8_t { prompts, trajectories, checkpoint, model, evaluation, run };

/// Where results may lie: an evaluation's or sweep's own directory, or in the --out of one.
[[nodiscard]] std::vector<std::filesystem::path> evaluation_directories(
    const std::filesystem::path& path);

/// Throws DataError for a path that is nothing of these, or not there.
[[nodiscard]] Artefact kind_of(const std::filesystem::path& path);

}  // namespace jforge
