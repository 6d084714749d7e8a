#include "runtime/tensor/cuda_queue.h"

#include "runtime/tensor/cuda_handles.h"
#include "runtime/tensor/cuda_stream_queue.h"

namespace jforge {

int selected_cuda_device() {
  int index = 0;
  cuda_check(cudaGetDevice(&index), "ask for the selected device");
  return index;
}

std::unique_ptr<Queue> make_cuda_queue() { return std::make_unique<CudaQueue>(); }

std::byte* cuda_memory::allocate_pinned(std::size_t bytes) {
  void* data = nullptr;
  cuda_check(cudaMallocHost(&data, bytes), "allocate page-locked host memory");
  return static_cast<std::byte*>(data);
}

void cuda_memory::free_pinned(std::byte* data) noexcept {
  static_cast<void>(cudaFreeHost(data));
  static_cast<void>(cudaGetLastError());
}

}  // namespace jforge
