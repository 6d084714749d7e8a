#include "workers/train/early_stop.h"

#include <fmt/format.h>

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
  at_least("early_stop_patience", patience, 1);
  if (every > 0 && task.empty()) {
    throw ConfigError(
        "train.early_stop_every needs train.early_stop_task: name a benchmark with held-out "
        "problems");
  }
}

bool EarlyStop::add(std::optional<double> tpf, std::optional<double> accuracy) {
  const bool faster = gains(state_.best_tpf, tpf, state_.best_tpf.value_or(0) * (1 + kMinGain));
  const bool better =
      gains(state_.best_accuracy, accuracy, state_.best_accuracy.value_or(0) + kMinGain);
  const bool gained = faster || better;
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
