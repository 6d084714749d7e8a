/// The CPU-only build's side of cuda_queue.h.

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

std::byte* cuda_memory::allocate_pinned(std::size_t /*bytes*/) {
  expect_cuda_device();
  return nullptr;
}

void cuda_memory::free_pinned(std::byte* /*data*/) noexcept {}

}  // namespace jforge
