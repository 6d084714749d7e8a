#pragma once

/// Canonical bytes and digests of trajectories (TRAJECTORY_FORMAT.md "Digests"). They do not depend
/// on platform, ranks or leases.

#include <cstdint>
#include <span>
#include <string>

#include "data/trajectories/trajectory.h"

namespace jforge {

/// Returns the canonical, little-endian serialisation of one record.
[[nodiscard]] std::string canonical_bytes(const Trajectory& trajectory);

/// Returns XXH3-64 of the canonical bytes.
[[nodiscard]] std::uint64_t trajectory_digest(const Trajectory& trajectory);

/// Returns XXH3-64 over the digests, 8 little-endian bytes each, in the given order.
[[nodiscard]] std::uint64_t combine_digests(std::span<const std::uint64_t> record_digests);

/// Throws DataError naming the prompt (and block) if the record is inconsistent: block size below
/// 1, a block that is not a whole number of states, a stored pair that is not a pair, an
/// end-of-sequence position outside of the answer or against the stop reason, a negative id or
/// token.
void validate_trajectory(const Trajectory& trajectory);

}  // namespace jforge
