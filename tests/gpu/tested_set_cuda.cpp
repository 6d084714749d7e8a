#include <cstdlib>

#include "model/kernels/cuda/cuda_kernel_set.h"
#include "runtime/tensor/cuda_memory.h"
#include "tests/support/tested_kernel_set.h"

namespace jforge {

std::unique_ptr<KernelSet> make_tested_kernel_set() {
  const char* const place = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  return make_cuda_kernel_set(place == nullptr ? 0 : std::atoi(place) % cuda_device_count());
}

}  // namespace jforge
