#pragma once

/// One thing that the program does left out, so that its tests can show that they notice. With
/// JFORGE_EMULATED_LIST, a file, each that could be is listed there; JFORGE_EMULATED_OMIT names,
/// with commas between, what is left out.

#include "tests/cuda_emulator/instruction.h"

namespace jforge::emulator {

/// What a kernel that is launched waits for: "barrier KERNEL:k PTX line n", where k is b and a
/// number for a barrier of the block, w for one of a warp, c for the wait for copies under way; and
/// "idle" where on one side of a block's barrier no shared memory is accessed up to the barrier
/// beside it, which then orders as much.
void mutate(Kernel& kernel);

/// Whether this call of the host's that waits, or that marks what is waited for, is left out:
/// "wait CALL:h FRAME FRAME …", where h stands for the places in the program that led to it, each
/// given as OBJECT+OFFSET.
[[nodiscard]] bool leaves_out_wait(const char* call);

}  // namespace jforge::emulator
