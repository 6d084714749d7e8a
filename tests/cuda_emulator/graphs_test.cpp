/// A graph launch does what the captured calls would have done. Runs with the emulated libraries.

#include <gmock/gmock.h>

#include <functional>

#include "tests/cuda_emulator/emulated_device_test.h"
#include "tests/cuda_emulator/faulty_kernels.cuh"

namespace jforge::test {
namespace {

class Graphs : public EmulatedDevice {
 protected:
  void begin() {
    ASSERT_EQ(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  }
  cudaGraphExec_t end() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaSuccess);
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return executable;
  }
  void expect_lost(cudaError_t expected) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(first_, &graph), expected);
    EXPECT_EQ(graph, nullptr);
    static_cast<void>(cudaGetLastError());
    EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  }
  void put(float value) {
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::fill(pinned_, pinned_ + kCount, value);
  }
};

/// Copy in, three doublings, copy out.
TEST_F(Graphs, ReplayReadsMemoryAtReplay) {
  for (const std::string& order : every_order()) {
    set_order(order);
    put(1.0F);
    ASSERT_EQ(cudaMemset(y_, 0, kBytes), cudaSuccess);
    begin();
    ASSERT_EQ(cudaMemcpyAsync(x_, pinned_, kBytes, cudaMemcpyHostToDevice, first_), cudaSuccess);
    launch_double(x_, y_, kCount, first_);
    launch_double(y_, x_, kCount, first_);
    ASSERT_EQ(cudaMemcpyAsync(y_, x_, kBytes, cudaMemcpyDeviceToDevice, first_), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(x_, 0, kBytes, first_), cudaSuccess);
    const cudaGraphExec_t executable = end();
    EXPECT_EQ(download()[5], 0.0F) << order;
    for (const float value : {1.0F, 3.0F}) {
      put(value);
      ASSERT_EQ(cudaGraphLaunch(executable, first_), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
      EXPECT_EQ(download()[5], 4.0F * value) << order;
    }
    put(5.0F);
    ASSERT_EQ(cudaGraphLaunch(executable, second_), cudaSuccess);
    ASSERT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
    EXPECT_EQ(download()[5], 20.0F) << order;
  }
}

TEST_F(Graphs, ForkAndJoin) {
  float* z = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&z), kBytes), cudaSuccess);
  cudaEvent_t joined = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming), cudaSuccess);
  for (const bool with_join : {true, false}) {
    for (const std::string& order : every_order()) {
      set_order(order);
      put(1.0F);
      begin();
      ASSERT_EQ(cudaMemcpyAsync(x_, pinned_, kBytes, cudaMemcpyHostToDevice, first_), cudaSuccess);
      ASSERT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
      ASSERT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaSuccess);
      launch_double(x_, z, kCount, second_);
      ASSERT_EQ(cudaEventRecord(joined, second_), cudaSuccess);
      if (with_join) {
        ASSERT_EQ(cudaStreamWaitEvent(first_, joined, 0), cudaSuccess);
      }
      launch_double(z, y_, kCount, first_);
      // Without this wait the capture is refused.
      ASSERT_EQ(cudaStreamWaitEvent(first_, joined, 0), cudaSuccess);
      const cudaGraphExec_t executable = end();
      if (with_join) {
        for (const float value : {1.0F, 3.0F}) {
          put(value);
          ASSERT_EQ(cudaGraphLaunch(executable, first_), cudaSuccess);
          ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
          EXPECT_EQ(download()[5], 4.0F * value) << order;
        }
      } else {
        static_cast<void>(cudaGraphLaunch(executable, first_));
        EXPECT_THAT(report_of(cudaDeviceSynchronize()), testing::HasSubstr("is not ordered after"))
            << order;
        set_order("lazy");
      }
      ASSERT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    }
  }
  EXPECT_EQ(cudaEventDestroy(joined), cudaSuccess);
  EXPECT_EQ(cudaFree(z), cudaSuccess);
}

TEST_F(Graphs, AnUploadMayLackMemory) {
  begin();
  launch_double(x_, y_, kCount, first_);
  const cudaGraphExec_t executable = end();
  ASSERT_EQ(setenv("JFORGE_EMULATED_GRAPHS", "no-upload", 1), 0);
  EXPECT_EQ(cudaGraphUpload(executable, first_), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGraphLaunch(executable, first_), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  ASSERT_EQ(unsetenv("JFORGE_EMULATED_GRAPHS"), 0);
  EXPECT_EQ(cudaGraphUpload(executable, first_), cudaSuccess);
  ASSERT_EQ(setenv("JFORGE_EMULATED_GRAPHS", "no-upload", 1), 0);
  upload();
  EXPECT_EQ(cudaGraphLaunch(executable, first_), cudaSuccess);
  ASSERT_EQ(unsetenv("JFORGE_EMULATED_GRAPHS"), 0);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(download()[5], 2.0F * values_[5]);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
}

TEST_F(Graphs, WhatACaptureForbidsIsRefused) {
  void* memory = nullptr;
  std::vector<float> pageable(kCount);
  const std::vector<std::function<cudaError_t()>> calls{
      [&] { return cudaMalloc(&memory, kBytes); },
      [&] { return cudaMallocHost(&memory, kBytes); },
      [&] { return cudaFree(nullptr); },
      [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaStreamSynchronize(first_); },
      [&] { return cudaStreamQuery(first_); },
      [&] { return cudaEventQuery(event_); },
      [&] { return cudaMemcpy(x_, pinned_, kBytes, cudaMemcpyHostToDevice); },
      [&] { return cudaMemcpyAsync(x_, pageable.data(), kBytes, cudaMemcpyHostToDevice, first_); }};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    begin();
    EXPECT_EQ(calls[i](), cudaErrorStreamCaptureUnsupported) << i;
    expect_lost(cudaErrorStreamCaptureInvalidated);
  }
  // Waits for outside work, then leaves a branch unjoined.
  ASSERT_EQ(cudaEventRecord(event_, second_), cudaSuccess);
  begin();
  EXPECT_EQ(cudaStreamWaitEvent(first_, event_, 0), cudaErrorStreamCaptureIsolation);
  expect_lost(cudaErrorStreamCaptureInvalidated);
  begin();
  ASSERT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaSuccess);
  launch_double(x_, y_, kCount, second_);
  expect_lost(cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
}

}  // namespace
}  // namespace jforge::test
