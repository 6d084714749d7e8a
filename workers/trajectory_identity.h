#pragma once

/// The hash of everything that a round's trajectories depend on; every shard carries it.

#include <cstdint>
#include <string>

#include "checkpoints/identity.h"

namespace jforge {

/// Returns 16 hex digits over the keys of `identity` that affect what round `round` (1-based)
/// generates: generate.*, the prompts' digest, the seed, rounded weights (model.decode_weights,
/// with the order of sums) and the round's block size; with generate.store_states = "selected" also
/// its noise schedule and train.compat, which choose the stored states. `origin` is the hash of the
/// model or, from round 2 on, of the last checkpoint of the round before.
[[nodiscard]] std::string trajectory_identity(const Identity& identity, std::int32_t round,
                                              const std::string& origin);

}  // namespace jforge
