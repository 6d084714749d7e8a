#include "workers/train/spike_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/error.h"

namespace jforge {

void SpikeGuardConfig::validate() const {
  if (ratio != 0 && (!(ratio > 1) || !std::isfinite(ratio))) {
    throw ConfigError(fmt::format(
        "train.spike_guard_ratio = {} must be greater than 1 (0 turns the guard off)", ratio));
  }
}

SpikeGuard::SpikeGuard(const SpikeGuardConfig& config) : config_(config) {
  config_.validate();
  if (active()) {
    state_.recent.reserve(static_cast<std::size_t>(config_.window));
    sorted_.reserve(static_cast<std::size_t>(config_.window));
  }
}

/// Lower median.
std::optional<double> SpikeGuard::median() {
  if (std::cmp_less(state_.recent.size(), config_.window)) {
    return std::nullopt;
  }
  sorted_ = state_.recent;
  const auto middle = sorted_.begin() + static_cast<std::ptrdiff_t>((sorted_.size() - 1) / 2);
  std::ranges::nth_element(sorted_, middle);
  return *middle;
}

bool SpikeGuard::is_spike(double value) {
  last_ = value;
  reference_ = median();
  if (reference_ && value > config_.ratio * *reference_) {
    ++state_.skipped;
    ++state_.in_a_row;
    return true;
  }
  state_.in_a_row = 0;
  if (std::cmp_equal(state_.recent.size(), config_.window)) {
    state_.recent.erase(state_.recent.begin());
  }
  state_.recent.push_back(value);
  return false;
}

std::string SpikeGuard::describe() const {
  return fmt::format("loss {:.6g} is more than {:.6g} times {:.6g}, the median of {} steps", last_,
                     config_.ratio, reference_.value_or(0), config_.window);
}

void SpikeGuard::expect_patience(std::int64_t step) const {
  if (!active() || state_.in_a_row <= config_.patience) {
    return;
  }
  NumericalError error(fmt::format(
      "the updates of {} steps in a row, up to step {}, were left out as spikes: {}; resume from "
      "an earlier checkpoint with a lower train.learning_rate, or raise train.spike_guard_ratio",
      state_.in_a_row, step, describe()));
  // Every rank judged the same sums.
  error.set_on_all_ranks();
  throw error;
}

void SpikeGuard::restore(SpikeGuardState state) {
  if (!active()) {
    state.recent.clear();
    state.in_a_row = 0;
  }
  const auto window = static_cast<std::size_t>(config_.window);
  if (state.recent.size() > window) {
    state.recent.erase(state.recent.begin(),
                       state.recent.end() - static_cast<std::ptrdiff_t>(window));
  }
  state_ = std::move(state);
  state_.recent.reserve(window);
}

}  // namespace jforge
