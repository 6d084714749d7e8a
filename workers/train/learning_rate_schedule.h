#pragma once

/// Linear warm-up, then one cycle of cosine decay (Loshchilov & Hutter, "SGDR", 2017, equation 5).
/// Stateless, so that a resumed run sees the same rates.

#include <cstdint>

namespace jforge {

struct LearningRateSchedule {
  double peak = 0;
  std::int64_t total_steps = 1;
  double warmup_ratio = 0;   ///< Share of total_steps in [0, 1], rounded up.
  double minimum_ratio = 0;  ///< Final rate / peak.

  /// At most total_steps.
  [[nodiscard]] std::int64_t warmup_steps() const;
  /// `step` is 1-based; beyond total_steps: the minimum.
  [[nodiscard]] double at(std::int64_t step) const;
};

}  // namespace jforge
