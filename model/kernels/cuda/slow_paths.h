#pragma once

/// Warnings about slow paths on a device, logged once per kernel set or plan.

#include <cstdint>

namespace jforge {

/// bfloat16 attention has a head size without a tensor-core kernel.
void warn_of_lane_attention(std::int64_t head_size);

/// The device lacks memory to record a pass of this many rows.
void warn_of_unrecorded_passes(std::int64_t rows);

}  // namespace jforge
