#pragma once

/// Digests of trajectories (TRAJECTORY_FORMAT.md "Digests"), independent of platform, ranks and
/// leases.

#include <cstdint>
#include <span>
#include <string>

#include "data/trajectories/trajectory.h"

namespace jforge {

/// Returns the little-endian serialisation of a record.
[[nodiscard]] std::string canonical_bytes(const Trajectory& trajectory);

/// Returns XXH3-64 of the canonical bytes.
[[nodiscard]] std::uint64_t trajectory_digest(const Trajectory& trajectory);

/// Returns XXH3-64 over the digests in the given order, 8 little-endian bytes each.
[[nodiscard]] std::uint64_t combine_digests(std::span<const std::uint64_t> record_digests);

/// Throws DataError naming prompt and block if the block size is below 1, a block is not a whole
/// number of states, a stored pair is not a pair, the end-of-sequence position is outside of the
/// answer or contradicts the stop reason, or an id or token is negative.
void validate_trajectory(const Trajectory& trajectory);

}  // namespace jforge
