#pragma once

/// Kinds of paths for `verify` and `inspect`.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace jforge {

enum class Artefact : std::uint8_t { prompts, trajectories, checkpoint, model, evaluation, run };

/// Returns `path`, its evaluation/ and its sweep/, which may hold results.
[[nodiscard]] std::vector<std::filesystem::path> evaluation_directories(
    const std::filesystem::path& path);

/// Throws DataError if `path` is missing or none of these.
[[nodiscard]] Artefact kind_of(const std::filesystem::path& path);

}  // namespace jforge
