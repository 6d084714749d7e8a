#pragma once

#include <cstdint>

namespace jforge {

enum class RotaryScaling : std::uint8_t {
  none,
  linear,  ///< Position interpolation (arXiv 2306.15595): frequencies / `factor`.
  llama3,  ///< Llama 3.1: low frequencies / `factor`, high ones kept, a ramp between.
  off,     ///< No rotation (NoPE).
};

struct RotarySettings {
  double theta = 10000.0;
  RotaryScaling scaling = RotaryScaling::none;
  double factor = 1;                    ///< linear, llama3
  double low_frequency_factor = 1;      ///< llama3, as the next two.
  double high_frequency_factor = 4;     ///< Above low_frequency_factor.
  std::int64_t original_positions = 0;  ///< P: positions of the original training.
  double scale = 1;                     ///< Cosines and sines are multiplied by it.

  bool operator==(const RotarySettings&) const = default;
};

/// Radians per position of pair i of `half` = D/2: f_i = theta^(−i/half), scaled. linear: f_i /
/// factor. llama3: (1 − s) · f_i / factor + s · f_i, with s = (r_i − low) / (high − low) clamped to
/// [0, 1], r_i = P · f_i / 2π.
[[nodiscard]] double rotary_frequency(const RotarySettings& settings, std::int64_t pair,
                                      std::int64_t half);

}  // namespace jforge
