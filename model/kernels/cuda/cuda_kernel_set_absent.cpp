
#include "model/kernels/cuda/cuda_kernel_set.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {

std::unique_ptr<KernelSet> make_cuda_kernel_set(int /*index*/) {
  expect_cuda_device();
  throw InternalError("a build without CUDA found a CUDA device");
}

}  // namespace jforge
