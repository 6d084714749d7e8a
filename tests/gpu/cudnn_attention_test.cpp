/// cuDNN has plans for our graphs on an H100 and an A100: asked without either. A device's
/// properties are given as text, as cuDNN's ahead-of-time compilation takes them; graphs go through
/// its heuristics and check_support on the host. That shows that cuDNN takes the shapes, types and
/// masks, not that it computes: see TensorCoreAttention.CudnnTakesSequences. Needs libcudnn and
/// libcudart of the toolkit and its stub of libcuda.so.1, of which nothing is called.

#include "model/kernels/cuda/cudnn_attention.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace jforge {
namespace {

/// What cudaGetDeviceProperties says of an SXM module.
CudnnDevice device(const char* name, int capability, int multiprocessors, std::int64_t shared,
                   std::int64_t cache) {
  return {fmt::format(
              R"({{"deviceName": "{}", "deviceVer": {}, "multiProcessorCount": {},
"maxSharedMemoryPerBlockOptin": {}, "l2CacheSize": {}, "totalGlobalMem": 85899345920,
"smClockRateKHz": 1410000, "memClockRateKHz": 1593000, "cudaDeviceId": 0, "pciDeviceId": 0,
"driverVer": 13000, "cudaRtVer": 13000, "isTccDriver": 0, "warpSize": 32,
"maxBlockSize": [1024, 1024, 64], "maxGridSize": [2147483647, 65535, 65535], "maxCtasPerSM": 32,
"maxRegistersPerSM": 65536, "regsPerBlock": 65536, "maxThreadsPerBlock": 1024,
"maxThreadsPerSM": 2048, "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024,
"supportCoopLaunch": 1}})",
              name, capability * 10, multiprocessors, shared, cache),
          capability, multiprocessors};
}
CudnnDevice h100() { return device("NVIDIA H100 80GB HBM3", 90, 132, 232448, 52428800); }
CudnnDevice a100() { return device("NVIDIA A100-SXM4-80GB", 80, 108, 166912, 41943040); }
CudnnDevice v100() { return device("Tesla V100-SXM2-32GB", 70, 80, 98304, 6291456); }

/// Qwen2.5-0.5B and 7B, Llama 3 8B.
constexpr CudnnShape kModels[] = {{14, 2, 64}, {28, 4, 128}, {32, 8, 128}};

CudnnShape with_rows(CudnnShape shape, std::int64_t sequences, std::int64_t rows) {
  shape.sequences = sequences;
  shape.rows = rows;
  return shape;
}

TEST(CudnnAttention, OurGraphsAreAccepted) {
  for (const CudnnDevice& device : {h100(), a100()}) {
    for (const CudnnShape& model : kModels) {
      for (const auto& [sequences, rows] : {std::pair{1, 64}, {4, 2048}, {64, 512}, {2, 16384}}) {
        SCOPED_TRACE(
            fmt::format("{}: {} heads, {} x {}", device.capability, model.heads, sequences, rows));
        EXPECT_EQ(cudnn_refusal(with_rows(model, sequences, rows), device), "");
      }
    }
  }
}

TEST(CudnnAttention, WhatItDoesNotHaveIsRefused) {
  using ::testing::HasSubstr;
  EXPECT_THAT(cudnn_refusal({14, 4, 64, 4, 512}, h100()), HasSubstr("number of heads"));
  EXPECT_THAT(cudnn_refusal({14, 2, 65, 4, 512}, h100()), HasSubstr("multiple of 8"));
  EXPECT_THAT(cudnn_refusal(with_rows(kModels[0], 4, 512), v100()), HasSubstr("requires SM80"));
}

}  // namespace
}  // namespace jforge
