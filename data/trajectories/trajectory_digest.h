#pragma once

/// Canonical bytes and digests of trajectories (TRAJECTORY_FORMAT.md "Digests"): the same on every
/// platform, whatever ranks and leases produced the records.

#include <cstdint>
#include <span>
#include <string>

#include "data/trajectories/trajectory.h"

namespace jforge {

/// The canonical, little-endian serialisation of one record.
[[nodiscard]] std::string canonical_bytes(const Trajectory& trajectory);

/// XXH3-64 of the canonical bytes.
[[nodiscard]] std::uint64_t trajectory_digest(const Trajectory& trajectory);

/// XXH3-64 over record digests, 8 little-endian bytes each, in the order given.
[[nodiscard]] std::uint64_t combine_digests(std::span<const std::uint64_t> record_digests);

/// DataError naming the prompt, and the block where there is one, when the record breaks a rule of
/// its own: block size below 1, a block without a whole number of states, a stored pair that is no
/// pair, an end-of-sequence position outside of the answer or against the stop reason, a negative
/// id or token.
void validate_trajectory(const Trajectory& trajectory);

}  // namespace jforge
