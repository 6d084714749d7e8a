#pragma once

/// Warnings about slow paths on a device.

#include <cstdint>

namespace jforge {

/// bfloat16 attention has no tensor-core kernel for this head size.
void warn_of_lane_attention(std::int64_t head_size);

/// The device lacks memory to record a pass.
void warn_of_unrecorded_passes(std::int64_t rows);

}  // namespace jforge
