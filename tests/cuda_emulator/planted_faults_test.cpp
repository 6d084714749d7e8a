/// Faults planted in kernels and in the order of streams, as nvcc compiles them: each is found and
/// named, and nothing is found where there is none. Runs with the emulated libraries.

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/cuda_emulator/emulated_device_test.h"
#include "tests/cuda_emulator/faulty_kernels.cuh"

namespace jforge::test {
namespace {

using testing::HasSubstr;

class PlantedFaults : public EmulatedDevice {
 protected:
  /// What the device says about the block sums of all values.
  std::string report_of(Planted planted) {
    upload();
    launch_block_sums(planted, x_, y_, kCount / 256, first_);
    return test::report_of(cudaStreamSynchronize(first_));
  }
};

TEST_F(PlantedFaults, CorrectKernelsPass) {
  EXPECT_EQ(report_of(Planted::nothing), "no fault");
  const std::vector<float> sums = download();
  for (std::size_t block = 0; block < kCount / 256; ++block) {
    const auto begin = values_.begin() + static_cast<std::ptrdiff_t>(256 * block);
    EXPECT_EQ(sums[block], std::accumulate(begin, begin + 256, 0.0F));
  }
}

TEST_F(PlantedFaults, MissingBarrier) {
  EXPECT_THAT(report_of(Planted::missing_barrier), HasSubstr("race: "));
}

TEST_F(PlantedFaults, UninitialisedSharedMemory) {
  EXPECT_THAT(report_of(Planted::uninitialised),
              HasSubstr("uninitialised memory: shared byte 1020 is read"));
}

TEST_F(PlantedFaults, OutOfBounds) {
  const std::string report = report_of(Planted::out_of_bounds);
  EXPECT_THAT(report, HasSubstr("illegal address: read of 4 bytes at"));
  EXPECT_THAT(report, HasSubstr("0 bytes past the end of the 4096 bytes"));
  EXPECT_THAT(report, HasSubstr("block (3, 0, 0), thread (255, 0, 0)"));
  EXPECT_THAT(report, HasSubstr("block_sums"));
}

TEST_F(PlantedFaults, DivergentBarrier) {
  EXPECT_THAT(report_of(Planted::divergent_barrier), HasSubstr("divergent barrier: "));
}

TEST_F(PlantedFaults, UnknownInstruction) {
  EXPECT_THAT(report_of(Planted::unknown_instruction),
              HasSubstr("instruction `nanosleep.u32` in `nanosleep.u32 20` is not known"));
}

/// As on a device a failure stays until the process gives the device up.
TEST_F(PlantedFaults, FailuresStay) {
  EXPECT_NE(report_of(Planted::out_of_bounds), "no fault");
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMemset(x_, 0, kBytes), cudaErrorIllegalAddress);
}

TEST_F(PlantedFaults, UseAfterFree) {
  float* gone = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&gone), kBytes), cudaSuccess);
  ASSERT_EQ(cudaFree(gone), cudaSuccess);
  launch_double(gone, y_, kCount, first_);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaErrorIllegalAddress);
  EXPECT_THAT(cudaGetErrorString(cudaErrorIllegalAddress), HasSubstr("inside the 4096 bytes at"));
  EXPECT_THAT(cudaGetErrorString(cudaErrorIllegalAddress), HasSubstr("which were freed"));
}

TEST_F(PlantedFaults, FreeTwice) {
  float* gone = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&gone), kBytes), cudaSuccess);
  ASSERT_EQ(cudaFree(gone), cudaSuccess);
  EXPECT_EQ(cudaFree(gone), cudaErrorIllegalAddress);
}

/// x goes to the device on one stream and is doubled on another, with or without the wait between.
class StreamOrder : public PlantedFaults {
 protected:
  bool doubles(bool with_wait) {
    EXPECT_EQ(cudaMemset(x_, 0, kBytes), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::copy(values_.begin(), values_.end(), pinned_);
    EXPECT_EQ(cudaMemcpyAsync(x_, pinned_, kBytes, cudaMemcpyHostToDevice, first_), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
    if (with_wait) {
      EXPECT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaSuccess);
    }
    launch_double(x_, y_, kCount, second_);
    EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
    const std::vector<float> result = download();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return result[5] == 2.0F * values_[5];
  }
};

TEST_F(StreamOrder, WithTheWaitEveryOrderIsRight) {
  for (const std::string& order : every_order()) {
    set_order(order);
    EXPECT_TRUE(doubles(true)) << order;
  }
}

TEST_F(StreamOrder, AMissingWaitShows) {
  set_order("eager");
  EXPECT_TRUE(doubles(false));
  set_order("lazy");
  EXPECT_FALSE(doubles(false));
  int right = 0;
  int wrong = 0;
  for (int seed = 0; seed < 20; ++seed) {
    set_order("random:" + std::to_string(seed));
    ++(doubles(false) ? right : wrong);
  }
  EXPECT_GT(right, 0);
  EXPECT_GT(wrong, 0);
}

TEST_F(StreamOrder, PageLockedMemoryIsReadWhenTheStreamComesToIt) {
  for (const std::string order : {"eager", "lazy"}) {
    set_order(order);
    pinned_[5] = 1.0F;
    ASSERT_EQ(cudaMemcpyAsync(y_, pinned_, kBytes, cudaMemcpyHostToDevice, first_), cudaSuccess);
    pinned_[5] = 2.0F;  // Too early.
    ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    EXPECT_EQ(download()[5], order == "eager" ? 1.0F : 2.0F);
  }
  // Pageable memory is read before the call returns.
  std::vector<float> pageable(kCount, 3.0F);
  ASSERT_EQ(cudaMemcpyAsync(y_, pageable.data(), kBytes, cudaMemcpyHostToDevice, first_),
            cudaSuccess);
  pageable[5] = 4.0F;
  ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(download()[5], 3.0F);
}

TEST_F(StreamOrder, ResultsComeWithTheWait) {
  upload();
  pinned_[5] = -1.0F;
  launch_double(x_, y_, kCount, first_);
  ASSERT_EQ(cudaMemcpyAsync(pinned_, y_, kBytes, cudaMemcpyDeviceToHost, first_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  EXPECT_EQ(pinned_[5], -1.0F);
  ASSERT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  EXPECT_EQ(pinned_[5], 2.0F * values_[5]);
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST_F(StreamOrder, PoolMemoryLivesInItsStreamsOrder) {
  for (const std::string& order : every_order()) {
    set_order(order);
    upload();
    float* scratch = nullptr;
    ASSERT_EQ(cudaMallocAsync(reinterpret_cast<void**>(&scratch), kBytes, first_), cudaSuccess);
    launch_double(x_, scratch, kCount, first_);
    launch_double(scratch, y_, kCount, first_);
    ASSERT_EQ(cudaFreeAsync(scratch, first_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess) << order;
    EXPECT_EQ(download()[5], 4.0F * values_[5]);
  }
  set_order("lazy");
  float* scratch = nullptr;
  ASSERT_EQ(cudaMallocAsync(reinterpret_cast<void**>(&scratch), kBytes, first_), cudaSuccess);
  launch_double(scratch, y_, kCount, second_);
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaErrorIllegalAddress);
  EXPECT_THAT(cudaGetErrorString(cudaErrorIllegalAddress),
              HasSubstr("whose allocation comes later in its stream"));
}

/// More shared memory than a kernel gets unasked, and more than there is.
TEST_F(StreamOrder, DynamicSharedMemoryHasItsLimit) {
  upload();
  EXPECT_EQ(launch_reverse(x_, y_, 100 << 10, first_), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(download()[0], values_[255]);
  EXPECT_EQ(launch_reverse(x_, y_, 164 << 10, first_), cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
}

}  // namespace
}  // namespace jforge::test
