#pragma once

namespace jforge {

/// Leaves the calling thread only idle cores, or about 1 % of a busy one (Linux: SCHED_BATCH, nice
/// 19). Irreversible without privileges; does nothing if the system refuses.
void yield_to_other_threads() noexcept;

}  // namespace jforge
