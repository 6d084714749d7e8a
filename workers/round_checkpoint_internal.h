#pragma once

/// What a round's checkpoints say of the round, in the manifest's cursors.

#include <cstdint>

#include "checkpoints/checkpoint_manifest.h"

namespace jforge {

/// Cursor: weights_origin of the round's trajectories.
inline constexpr const char* kGeneratedFrom = "generated_from";

/// Steps that the manifest's round trains in all. Throws DataError when a training round did not
/// make it.
[[nodiscard]] std::int64_t total_steps_of(const CheckpointManifest& manifest);
/// Whether it is the last checkpoint of its round.
[[nodiscard]] bool finishes_round(const CheckpointManifest& manifest);

}  // namespace jforge
