#pragma once

/// Threads whose work can wait.

namespace jforge {

/// From now on the calling thread gets a core when no other thread wants it, and about a hundredth
/// of one when all cores are busy (Linux: SCHED_BATCH, nice 19). Never to be undone: that takes
/// privileges. Where the system refuses, the thread stays as it is.
void yield_to_other_threads() noexcept;

}  // namespace jforge
