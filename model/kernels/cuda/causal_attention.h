#pragma once

/// Attention of a packed batch's whole causal sequences by something else than our kernels.

#include "model/kernels/cuda/causal_sequences.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

class CudaQueue;

class CausalAttention {
 public:
  CausalAttention() = default;
  virtual ~CausalAttention() = default;
  CausalAttention(const CausalAttention&) = delete;
  CausalAttention& operator=(const CausalAttention&) = delete;

  /// Forward, in the queue's order: writes the rows of `plan`'s sequences, of which there is one at
  /// least, in output [T, H, D] and log_sum_exp [T, H] (natural logarithm, of the scaled scores).
  /// Anything may stand in other rows afterwards: cuDNN leaves open what it does to rows between
  /// sequences. q [T, H, D], k and v [T, Hkv, D]: bfloat16, on the device, rows aligned to 16
  /// bytes. Equal inputs give equal bits.
  virtual void forward(CudaQueue& queue, const PackedPlan& plan, const DeviceSequences& sequences,
                       const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                       const TensorView& output, const TensorView& log_sum_exp) = 0;
};

}  // namespace jforge
