#pragma once

#include <memory>

#include "model/kernels/cuda/causal_attention.h"
#include "model/kernels/kernel_set.h"

namespace jforge {

/// The CUDA implementation, on CUDA device `index`, which becomes the calling thread's
/// device: buffers and kernels belong to the thread that made them. Throws EnvironmentError, saying
/// how to mend it, without CUDA in the build, without a driver and without that device, where the
/// device is older than the kernels, or `attention` cannot be had.
[[nodiscard]] std::unique_ptr<KernelSet> make_cuda_kernel_set(
    int index, AttentionChoice attention = AttentionChoice::own);

/// The same with packed attention's whole causal sequences computed by `causal_attention`, where
/// ours would run on tensor cores; null: all is ours.
[[nodiscard]] std::unique_ptr<KernelSet> make_cuda_kernel_set(
    int index, std::unique_ptr<CausalAttention> causal_attention);

}  // namespace jforge
