#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

namespace jforge::test {

inline constexpr unsigned kCount = 1024;
inline constexpr std::size_t kBytes = kCount * sizeof(float);

inline void set_order(const std::string& order) {
  ASSERT_EQ(setenv("JFORGE_EMULATED_ORDER", order.c_str(), 1), 0);
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
}

inline std::vector<std::string> every_order() {
  std::vector<std::string> orders{"eager", "lazy"};
  for (int seed = 0; seed < 20; ++seed) {
    orders.push_back("random:" + std::to_string(seed));
  }
  return orders;
}

class EmulatedDevice : public testing::Test {
 protected:
  void SetUp() override {
    set_order("lazy");
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&x_), kBytes), cudaSuccess);
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&y_), kBytes), cudaSuccess);
    ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned_), kBytes), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&first_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&second_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
    values_.resize(kCount);
    std::iota(values_.begin(), values_.end(), 1.0F);
  }
  void TearDown() override {
    set_order("lazy");
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(first_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(second_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    EXPECT_EQ(cudaFree(y_), cudaSuccess);
    EXPECT_EQ(cudaFree(x_), cudaSuccess);
  }

  void upload() {
    ASSERT_EQ(cudaMemcpy(x_, values_.data(), kBytes, cudaMemcpyHostToDevice), cudaSuccess);
  }
  std::vector<float> download() {
    std::vector<float> result(kCount);
    EXPECT_EQ(cudaMemcpy(result.data(), y_, kBytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return result;
  }
  float* x_ = nullptr;
  float* y_ = nullptr;
  float* pinned_ = nullptr;
  cudaStream_t first_ = nullptr;
  cudaStream_t second_ = nullptr;
  cudaEvent_t event_ = nullptr;
  std::vector<float> values_;
};

inline std::string report_of(cudaError_t status) {
  return status == cudaSuccess ? "no fault" : cudaGetErrorString(status);
}

}  // namespace jforge::test
