#pragma once

/// Learning rate of each step: linear warm-up, then cosine decay (Loshchilov & Hutter, "SGDR",
/// 2017, equation 5, one cycle). Pure: a resumed run sees the rates of an uninterrupted one.

#include <cstdint>

namespace jforge {

struct LearningRateSchedule {
  double peak = 0;               ///< Rate at the end of warm-up.
  std::int64_t total_steps = 1;  ///< Steps of the round.
  double warmup_ratio =
      0;  ///< Share of total_steps spent warming up, in [0, 1]; rounded up to whole steps.
  double minimum_ratio = 0;  ///< The cosine ends at peak · minimum_ratio.

  /// Whole steps of warm-up, at most total_steps.
  [[nodiscard]] std::int64_t warmup_steps() const;
  /// Rate of step `step`, 1-based (the first update is step 1 and already moves). Beyond
  /// total_steps: the minimum.
  [[nodiscard]] double at(std::int64_t step) const;
};

}  // namespace jforge
