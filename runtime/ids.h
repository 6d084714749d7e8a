#pragma once

#include <cstdint>

namespace jforge {

/// Never negative in data.
using TokenId = std::int32_t;
/// 0-based position in the prompt store, stable for its life.
using PromptId = std::int64_t;
/// Unique within a round of a run.
using LeaseId = std::int64_t;
/// 0-based MPI rank.
using Rank = int;

}  // namespace jforge
