#pragma once

/// Packed attention on tensor cores: bfloat16 tensors, float32 sums, head sizes 64 and 128.

#include <cmath>

#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "runtime/tensor/bfloat16.h"

namespace jforge {

/// Shaped as for KernelSet::packed_attention.
struct TensorCoreInputs {
  HeadShape shape;
  std::int64_t num_rows = 0;
  CudaPackedPlan::Visits visits;
  const BFloat16* q = nullptr;
  const BFloat16* k = nullptr;
  const BFloat16* v = nullptr;

  [[nodiscard]] float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape.dim)); }
};

/// bfloat16 with heads of 64 or 128.
[[nodiscard]] bool on_tensor_cores(const ConstTensorView& q);

/// Throws InternalError for another device or type or without 16-byte alignment.
[[nodiscard]] TensorCoreInputs tensor_core_inputs(const PackedPlan& plan, const ConstTensorView& q,
                                                  const ConstTensorView& k,
                                                  const ConstTensorView& v);
[[nodiscard]] BFloat16* tensor_core_rows(const TensorView& view);
[[nodiscard]] const BFloat16* tensor_core_rows(const ConstTensorView& view);

void tensor_core_attention(const DeviceQueue& queue, const TensorCoreInputs& inputs,
                           BFloat16* output, float* log_sum_exp);

struct TensorCoreGradients {
  const BFloat16* output_gradient = nullptr;
  const BFloat16* output = nullptr;
  const float* log_sum_exp = nullptr;
  void* scratch = nullptr;  ///< tensor_core_scratch() bytes.
  BFloat16* q_gradient = nullptr;
  BFloat16* k_gradient = nullptr;
  BFloat16* v_gradient = nullptr;
};

/// Bytes for every query's terms and for partial key gradients.
[[nodiscard]] std::int64_t tensor_core_scratch(const TensorCoreInputs& inputs);

void tensor_core_attention_backward(const DeviceQueue& queue, const TensorCoreInputs& inputs,
                                    const TensorCoreGradients& gradients);

}  // namespace jforge
