#include "workers/phases/services.h"

#include <string>

#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {

void PhaseServices::end_phase(const MemoryAccount& account) const {
  expect(account.live_bytes() == 0,
         account.name() + " left " + std::to_string(account.live_bytes()) + " bytes behind");
  log_debug("{} peaked at {:.1f} MB", account.name(),
            static_cast<double>(account.peak_bytes()) / 1e6);
  kernels.release_work_space();
  if (kernels.device() != Device::cpu) {
    log_info("{} took {:.1f} MB of the device at most", account.name(),
             static_cast<double>(cuda_memory::peak()) / 1e6);
    cuda_memory::forget_peak();
  }
}

}  // namespace jforge
