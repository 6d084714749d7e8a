/// Without device and driver, tests are skipped, or fail if JFORGE_REQUIRE_GPU is set; a broken
/// device or driver is always a failure.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "runtime/tensor/cuda_memory.h"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  testing::InitGoogleTest(&argc, argv);
  const jforge::CudaDevices found = jforge::find_cuda_devices();
  if (found.count > 0) {
    std::printf("device: %s\n", jforge::cuda_device_name(0).c_str());
    return RUN_ALL_TESTS();
  }
  if (!found.problem.empty()) {
    std::printf("no CUDA device can be used: %s\n", found.problem.c_str());
    return 1;
  }
  std::printf("skipped: no CUDA device here\n");
  return std::getenv("JFORGE_REQUIRE_GPU") != nullptr ? 1 : kSkipped;
}
