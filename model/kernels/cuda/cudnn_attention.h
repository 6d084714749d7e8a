#pragma once

/// Scaled dot-product attention of cuDNN for whole causal sequences, through the headers of
/// cudnn-frontend (Python package nvidia-cudnn-frontend). libcudnn is opened when it is first asked
/// for: a program without it starts and computes.

#include <compare>
#include <memory>
#include <string>

#include "model/kernels/packed_plan.h"

namespace jforge {

class CausalAttention;

/// train.attention = "cudnn" on the calling thread's device. Throws EnvironmentError, saying how to
/// mend it, without cudnn-frontend in the build, without a libcudnn that is new enough and where
/// cuDNN does not take the device.
[[nodiscard]] std::unique_ptr<CausalAttention> make_cudnn_attention();

/// Of a graph: as many sequences, each of up to so many rows.
struct CudnnShape {
  std::int64_t heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t size = 0;
  std::int64_t sequences = 0;
  std::int64_t rows = 0;
  auto operator<=>(const CudnnShape&) const = default;
};

/// A device that is not here, as cuDNN's ahead-of-time compilation takes it.
struct CudnnDevice {
  std::string properties;  ///< JSON: cudaDeviceProp by cuDNN's names.
  int capability = 0;      ///< 90 for 9.0.
  int multiprocessors = 0;
};

/// Why cuDNN has no plan for the graph of make_cudnn_attention() on `device`; empty where it has.
/// Needs libcudnn and a file libcuda.so.1 that can be opened (the toolkit's stub does), no device.
/// Throws EnvironmentError without them.
[[nodiscard]] std::string cudnn_refusal(const CudnnShape& shape, const CudnnDevice& device);

}  // namespace jforge
