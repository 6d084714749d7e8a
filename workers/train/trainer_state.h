#pragma once

/// State in a checkpoint's cursors besides weights and moments; equal on every rank.

#include <string>

#include "workers/train/early_stop.h"
#include "workers/train/spike_guard.h"

namespace jforge {

struct TrainerState {
  SpikeGuardState spike_guard;
  EarlyStopState early_stop;

  bool operator==(const TrainerState&) const = default;
};

/// Adds the state to `cursors`, a JSON object. Numbers are restored bit for bit.
[[nodiscard]] std::string with_trainer_state(const std::string& cursors, const TrainerState& state);

/// Default if absent (earlier versions). Throws DataError if malformed.
[[nodiscard]] TrainerState trainer_state_of(const std::string& cursors);

}  // namespace jforge
