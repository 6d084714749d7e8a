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

}  // namespace jforge
