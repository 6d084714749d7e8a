#include "model/kernels/cuda/cuda_kernel_set.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {

std::unique_ptr<KernelSet> make_cuda_kernel_set(int index) {
  select_cuda_device(index);
  return std::make_unique<CudaKernelSet>();
}

}  // namespace jforge
