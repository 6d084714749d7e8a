#pragma once

/// Omits barriers or waits, to show that tests notice. JFORGE_EMULATED_LIST: a file that gets all
/// candidates. JFORGE_EMULATED_OMIT: names, separated by commas.

#include "tests/cuda_emulator/instruction.h"

namespace jforge::emulator {

/// "barrier KERNEL:k PTX line n": k is b and a number for a block barrier, w for a warp barrier, c
/// for a wait for copies. "idle": its neighbours make it redundant.
void mutate(Kernel& kernel);

/// "wait CALL:h FRAME FRAME …": h stands for the calling places, each OBJECT+OFFSET.
[[nodiscard]] bool leaves_out_wait(const char* call);

}  // namespace jforge::emulator
