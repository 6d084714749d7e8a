#include "workers/train/learning_rate_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace jforge {

std::int64_t LearningRateSchedule::warmup_steps() const {
  // Tolerance: 0.03 · 100 must not become four steps by rounding.
  const double exact = warmup_ratio * static_cast<double>(total_steps);
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(exact - 1e-9)), 0,
                                  total_steps);
}

double LearningRateSchedule::at(std::int64_t step) const {
  const std::int64_t warmup = warmup_steps();
  if (step <= warmup) {
    return peak * static_cast<double>(step) / static_cast<double>(warmup);
  }
  // 1 / (decay steps + 1) at the first step after warm-up: no step has rate zero.
  const double progress = std::min(
      1.0, static_cast<double>(step - warmup) / static_cast<double>(total_steps - warmup + 1));
  const double cosine =
      step > total_steps ? 0.0 : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return peak * (minimum_ratio + (1.0 - minimum_ratio) * cosine);
}

}  // namespace jforge
