#include "model/kernels/cuda/cuda_kernel_set.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "model/kernels/cuda/cudnn_attention.h"
#include "runtime/tensor/cuda_handles.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {

std::unique_ptr<KernelSet> make_cuda_kernel_set(int index, AttentionChoice attention) {
  expect_cuda_device();
  select_cuda_device(index);
  return make_cuda_kernel_set(
      index, attention == AttentionChoice::cudnn ? make_cudnn_attention() : nullptr);
}

std::unique_ptr<KernelSet> make_cuda_kernel_set(int index,
                                                std::unique_ptr<CausalAttention> causal_attention) {
  expect_cuda_device();
  select_cuda_device(index);
  expect_capability();
  return std::make_unique<CudaKernelSet>(std::move(causal_attention));
}

}  // namespace jforge
