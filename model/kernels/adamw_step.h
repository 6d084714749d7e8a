#pragma once

namespace jforge {

/// Factors of one AdamW step. Includes no headers, because code compiled for wider instruction sets
/// must not emit shared functions.
struct AdamWStep {
  float gradient_scale, beta1, beta2, decay_factor, step_size, inverse_sqrt_correction2, epsilon;
};

}  // namespace jforge
