/// cuda_queue.h in CPU-only builds.

#include "runtime/tensor/cuda_memory.h"
#include "runtime/tensor/cuda_queue.h"

namespace jforge {

int selected_cuda_device() {
  expect_cuda_device();
  return 0;
}

std::unique_ptr<Queue> make_cuda_queue() {
  expect_cuda_device();
  return nullptr;
}

}  // namespace jforge
