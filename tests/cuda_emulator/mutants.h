#pragma once

/// Omits barriers or waits of the program, to show that its tests notice. JFORGE_EMULATED_LIST: a
/// file that receives all candidates. JFORGE_EMULATED_OMIT: names of those to omit, separated by
/// commas.

#include "tests/cuda_emulator/instruction.h"

namespace jforge::emulator {

/// Barriers of a launched kernel: "barrier KERNEL:k PTX line n", where k is b and a number for a
/// block barrier, w for a warp barrier, c for a wait for copies. "idle": its neighbours make it
/// redundant.
void mutate(Kernel& kernel);

/// Waits of the host and marks of awaited work: "wait CALL:h FRAME FRAME …", where h stands for the
/// calling places, each given as OBJECT+OFFSET.
[[nodiscard]] bool leaves_out_wait(const char* call);

}  // namespace jforge::emulator
