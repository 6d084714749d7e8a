#pragma once

/// What a round's trajectories depend on, as one hash that every shard carries.

#include <cstdint>
#include <string>

#include "checkpoints/identity.h"

namespace jforge {

/// 16 hex digits over the keys of `identity` that decide what round `round` (1-based) generates:
/// generate.*, the prompts' digest, the seed, rounded weights (model.decode_weights) and the
/// round's block size; with generate.store_states = "selected" also its noise schedule and
/// train.compat, which choose the states that are kept. `origin` says whose answers they are: the
/// hash of the model, or from round 2 on of the checkpoint that ended the round before. Keys of
/// training alone do not count.
[[nodiscard]] std::string trajectory_identity(const Identity& identity, std::int32_t round,
                                              const std::string& origin);

}  // namespace jforge
