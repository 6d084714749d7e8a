#pragma once

/// Packed attention on tensor cores: bfloat16 tensors, sums in float32, head sizes 64 and 128.

#include <cmath>

#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "runtime/tensor/bfloat16.h"

namespace jforge {

/// What forward and backward read alike. Shapes as KernelSet::packed_attention's.
struct TensorCoreInputs {
  HeadShape shape;
  std::int64_t num_rows = 0;
  CudaPackedPlan::Visits visits;
  const BFloat16* q = nullptr;
  const BFloat16* k = nullptr;
  const BFloat16* v = nullptr;

  [[nodiscard]] float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape.dim)); }
};

/// Whether the kernels here take these tensors: bfloat16 with heads of 64 or 128.
[[nodiscard]] bool on_tensor_cores(const ConstTensorView& q);

/// Throws InternalError for tensors elsewhere, of another type or not aligned to 16 bytes.
[[nodiscard]] TensorCoreInputs tensor_core_inputs(const PackedPlan& plan, const ConstTensorView& q,
                                                  const ConstTensorView& k,
                                                  const ConstTensorView& v);
[[nodiscard]] BFloat16* tensor_core_rows(const TensorView& view);
[[nodiscard]] const BFloat16* tensor_core_rows(const ConstTensorView& view);

void tensor_core_attention(const DeviceQueue& queue, const TensorCoreInputs& inputs,
                           BFloat16* output, float* log_sum_exp);

/// Of one query for backward: log-sum-exp in units of log 2, and Σ_d output · output gradient.
struct alignas(8) QueryTerms {
  float log_sum_exp;
  float delta;
};

struct TensorCoreGradients {
  const BFloat16* output_gradient = nullptr;
  const BFloat16* output = nullptr;
  const float* log_sum_exp = nullptr;
  QueryTerms* terms = nullptr;  ///< Scratch, tensor_core_terms() of them.
  BFloat16* q_gradient = nullptr;
  BFloat16* k_gradient = nullptr;
  BFloat16* v_gradient = nullptr;
};

/// Rows of full query tiles × heads.
[[nodiscard]] inline std::int64_t tensor_core_terms(const TensorCoreInputs& inputs) {
  return divide_up(inputs.num_rows, kQueryTileRows) * kQueryTileRows * inputs.shape.heads;
}

void tensor_core_attention_backward(const DeviceQueue& queue, const TensorCoreInputs& inputs,
                                    const TensorCoreGradients& gradients);

}  // namespace jforge
