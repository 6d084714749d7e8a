#pragma once

/// Faults for tests, `--inject FAULT@PLACE:RANK:STEP` (tests/FAULTS.md). A disarmed check costs one
/// load. While a fault is armed, the log file names every place reached.

#include <cstdint>
#include <string_view>

#include "runtime/ids.h"

namespace jforge {

/// Arms faults, separated by commas. FAULT: kill (SIGKILL), stop (SIGSTOP), stall (the calling
/// thread sleeps forever), throw, exit0, nan, delay (3 s), interrupt (SIGUSR2). PLACE: "train",
/// "checkpoint.data", "phase NAME" (entering a phase), "generate.lease" (requesting work; a delay
/// leaves it to the other ranks) and others. STEP counts the rank's visits of the place from 1, or
/// is the caller's step number. Throws ConfigError on bad text.
void arm_faults(std::string_view specification, Rank rank);
/// Whether a fault of this rank is armed and has not acted.
[[nodiscard]] bool faults_armed() noexcept;
/// Counts a visit of `place` and performs a fault armed for it.
void fault_point(std::string_view place);
/// As above with a step number; returns true if the caller must perform the fault ("nan").
bool fault_point(std::string_view place, std::int64_t step);

}  // namespace jforge
