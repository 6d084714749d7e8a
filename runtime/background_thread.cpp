#include "runtime/background_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

namespace jforge {

void yield_to_other_threads() noexcept {
  // A batch thread does not preempt computing threads whenever its I/O completes.
  const sched_param parameters{};
  static_cast<void>(::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &parameters));
  // On Linux the nice value is per thread; 0 is the calling thread.
  constexpr int kLowest = 19;
  static_cast<void>(::setpriority(PRIO_PROCESS, 0, kLowest));
}

}  // namespace jforge
