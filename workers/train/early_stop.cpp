#include "workers/train/early_stop.h"

#include <fmt/format.h>

#include <cmath>

#include "runtime/error.h"

namespace jforge {

namespace {

/// Sets `best` to `value` if it is the first or exceeds `limit`.
bool gains(std::optional<double>& best, std::optional<double> value, double limit) {
  if (!value || (best && !(*value > limit))) {
    return false;
  }
  best = value;
  return true;
}

}  // namespace

void EarlyStopConfig::validate() const {
  const auto at_least = [](const char* key, std::int64_t value, std::int64_t least) {
    if (value < least) {
      throw ConfigError(fmt::format("train.{} = {} must be at least {}", key, value, least));
    }
  };
  at_least("early_stop_every", every, 0);
  at_least("early_stop_problems", problems, 1);
  at_least("early_stop_max_new_tokens", max_new_tokens.value_or(1), 1);
  at_least("early_stop_patience", patience, 1);
  if (!(min_gain >= 0) || !std::isfinite(min_gain)) {
    throw ConfigError(fmt::format("train.early_stop_min_gain = {} must not be negative", min_gain));
  }
  if (every > 0 && task.empty()) {
    throw ConfigError(
        "train.early_stop_every needs train.early_stop_task: name a benchmark with held-out "
        "problems");
  }
}

bool EarlyStop::add(std::optional<double> tpf, std::optional<double> accuracy) {
  bool gained = false;
  if (config_.measure != EarlyStopMeasure::accuracy) {
    gained = gains(state_.best_tpf, tpf, state_.best_tpf.value_or(0) * (1 + config_.min_gain));
  }
  if (config_.measure != EarlyStopMeasure::tpf) {
    gained = gains(state_.best_accuracy, accuracy,
                   state_.best_accuracy.value_or(0) + config_.min_gain) ||
             gained;
  }
  state_.without_gain = gained ? 0 : state_.without_gain + 1;
  return state_.without_gain >= config_.patience;
}

bool EarlyStop::restore(const EarlyStopState& state) {
  if (!state.problems.empty() && state.problems != state_.problems) {
    return false;
  }
  state_.best_tpf = state.best_tpf;
  state_.best_accuracy = state.best_accuracy;
  state_.without_gain = state.without_gain;
  return true;
}

}  // namespace jforge
