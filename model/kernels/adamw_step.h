#pragma once

namespace jforge {

/// Factors of one AdamW step. This header includes no others: code compiled for wider instruction
/// sets must not emit functions that all translation units share.
struct AdamWStep {
  float gradient_scale, beta1, beta2, decay_factor, step_size, inverse_sqrt_correction2, epsilon;
};

}  // namespace jforge
