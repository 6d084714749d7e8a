#pragma once

/// How fast a model's rotary position embedding turns each pair of a head's elements.

#include <cstdint>

namespace jforge {

enum class RotaryScaling : std::uint8_t {
  none,
  linear,  ///< Position interpolation (arXiv 2306.15595): every frequency divided by `factor`.
  llama3,  ///< Llama 3.1: low frequencies divided by `factor`, high ones kept, a ramp between.
  off,     ///< Every frequency is 0: nothing turns (NoPE).
};

struct RotarySettings {
  double theta = 10000.0;
  RotaryScaling scaling = RotaryScaling::none;
  double factor = 1;                    ///< linear, llama3
  double low_frequency_factor = 1;      ///< llama3, as the two that follow.
  double high_frequency_factor = 4;     ///< Above low_frequency_factor.
  std::int64_t original_positions = 0;  ///< P: positions that the model was first trained on.

  bool operator==(const RotarySettings&) const = default;
};

/// Radians by which one position turns pair i of `half` = D/2, f_i = theta^(−i/half), scaled. With
/// linear scaling f_i / factor. With llama3, of the turns r_i = P · f_i / 2π that the pair makes
/// within the original positions, and s = (r_i − low) / (high − low) cut to [0, 1]:
/// (1 − s) · f_i / factor + s · f_i.
[[nodiscard]] double rotary_frequency(const RotarySettings& settings, std::int64_t pair,
                                      std::int64_t half);

}  // namespace jforge
