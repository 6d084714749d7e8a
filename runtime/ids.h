#pragma once

/// Identifiers that cross module borders, and the strong type of a rank.

#include <cstdint>

namespace jforge {

/// Token id as stored on disk and in memory. Negative values never occur in data.
using TokenId = std::int32_t;
/// Position of a prompt in its prompt store, 0-based: stable for the life of the store.
using PromptId = std::int64_t;
/// Lease number, unique within a round of a run.
using LeaseId = std::int64_t;
/// MPI rank (process), 0-based.
using Rank = int;

}  // namespace jforge
