#pragma once

/// Faults for tests, `--inject FAULT@PLACE:RANK:STEP` (tests/FAULTS.md). Off unless asked for; a
/// disarmed check is one load. While one is armed, the log file names every place that is reached.

#include <cstdint>
#include <string_view>

#include "runtime/ids.h"

namespace jforge {

/// What an armed fault does when its place is reached: kill (SIGKILL), stop (SIGSTOP), stall (the
/// calling thread sleeps for ever, the others go on), throw, exit0, nan, delay (sleep 3 s),
/// interrupt (SIGUSR2 to itself). PLACE is a name such as "generate", "train", "checkpoint.data",
/// "checkpoint.manifest", "generate.lease" where a rank asks for work (also evaluate, grade; there
/// a delay leaves the work to the others), or "phase NAME" where a rank enters that phase
/// (phase_clock.h); STEP
/// counts visits of that place on that rank, from 1 (or is the step number where the caller gives
/// one). Several faults may be armed, separated by commas. Throws ConfigError on bad text.
void arm_faults(std::string_view specification, Rank rank);
/// Whether any fault is armed on this rank that has not acted yet.
[[nodiscard]] bool faults_armed() noexcept;
/// Reached place `place` (visit counting). Acts when armed for it.
void fault_point(std::string_view place);
/// The same with an explicit step number; returns true for a fault that the caller must act out
/// itself ("nan").
bool fault_point(std::string_view place, std::int64_t step);

}  // namespace jforge
