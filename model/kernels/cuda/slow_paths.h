#pragma once

/// What is logged, in one line each, where a device goes a slower way than it might: once by each
/// kernel set or plan.

#include <cstdint>

namespace jforge {

/// Attention in bfloat16 with heads of a size that the kernels on tensor cores do not take.
void warn_of_lane_attention(std::int64_t head_size);

/// The device has no memory for a recorded pass of so many rows.
void warn_of_unrecorded_passes(std::int64_t rows);

}  // namespace jforge
