#include "runtime/background_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

namespace jforge {

void yield_to_other_threads() noexcept {
  // Batch: it does not take a core at once from who computes whenever a transfer of its is done.
  const sched_param parameters{};
  static_cast<void>(::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &parameters));
  // On Linux the nice value is a thread's, and 0 is the calling one.
  constexpr int kLowest = 19;
  static_cast<void>(::setpriority(PRIO_PROCESS, 0, kLowest));
}

}  // namespace jforge
