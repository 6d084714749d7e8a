#pragma once

/// Low-priority threads.

namespace jforge {

/// Makes the calling thread run only when other threads leave a core, or about a hundredth of one
/// if all are busy (Linux: SCHED_BATCH, nice 19). Irreversible without privileges. Does nothing if
/// the system refuses.
void yield_to_other_threads() noexcept;

}  // namespace jforge
