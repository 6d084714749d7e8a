#pragma once

/// Faults for tests, `--inject FAULT@PHASE:RANK:STEP` (faults.md). Off unless asked for; a disarmed
/// check is one load.

#include <cstdint>
#include <string_view>

#include "runtime/ids.h"

namespace jforge {

/// What an armed fault does when its place is reached: kill (SIGKILL), stop (SIGSTOP), throw,
/// exit0, nan, delay (sleep 3 s), interrupt (SIGUSR2 to itself). PHASE is a place name such as
/// "generate", "train", "checkpoint.data", "checkpoint.manifest"; STEP counts visits of that place
/// on that rank, from 1 (or is the step number where the caller gives one). Several faults may be
/// armed, separated by commas. Throws ConfigError on bad text.
void arm_faults(std::string_view specification, Rank rank);
/// Reached place `place` (visit counting). Acts when armed for it.
void fault_point(std::string_view place);
/// The same with an explicit step number; returns true for a fault that the caller must act out
/// itself ("nan").
bool fault_point(std::string_view place, std::int64_t step);

}  // namespace jforge
