#pragma once

/// What training decides by beside weights and moments, as a checkpoint's cursors hold it: equal
/// on every rank.

#include <string>

#include "workers/train/early_stop.h"
#include "workers/train/spike_guard.h"

namespace jforge {

struct TrainerState {
  SpikeGuardState spike_guard;
  EarlyStopState early_stop;

  bool operator==(const TrainerState&) const = default;
};

/// `cursors`, a JSON object, with the state beside what it has. Numbers come back bit for bit.
[[nodiscard]] std::string with_trainer_state(const std::string& cursors, const TrainerState& state);

/// The state in a checkpoint's cursors; a fresh one where there is none (an earlier version's).
/// Throws DataError when it is garbled.
[[nodiscard]] TrainerState trainer_state_of(const std::string& cursors);

}  // namespace jforge
