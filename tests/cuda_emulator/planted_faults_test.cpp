/// Runs with the emulated libraries.

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/cuda_emulator/emulated_device_test.h"
#include "tests/cuda_emulator/faulty_kernels.cuh"

namespace jforge::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

class PlantedFaults : public EmulatedDevice {
 protected:
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

/// One stream copies x, another doubles it, with or without a wait.
class StreamOrder : public PlantedFaults {
 protected:
  std::string doubles(bool with_wait) {
    EXPECT_EQ(cudaMemset(x_, 0, kBytes), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::copy(values_.begin(), values_.end(), pinned_);
    EXPECT_EQ(cudaMemcpyAsync(x_, pinned_, kBytes, cudaMemcpyHostToDevice, first_), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
    if (with_wait) {
      EXPECT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaSuccess);
    }
    launch_double(x_, y_, kCount, second_);
    static_cast<void>(cudaStreamSynchronize(second_));
    return test::report_of(cudaDeviceSynchronize());
  }
};

TEST_F(StreamOrder, WithTheWaitEveryOrderIsRight) {
  for (const std::string& order : every_order()) {
    set_order(order);
    EXPECT_EQ(doubles(true), "no fault") << order;
    EXPECT_EQ(download()[5], 2.0F * values_[5]) << order;
  }
}

TEST_F(StreamOrder, AMissingWaitIsARaceInEveryOrder) {
  const std::string read = "race: read of byte ";
  const std::string write = "race: copy to device memory of byte 0 of the 4096 bytes at ";
  int reads = 0;
  int writes = 0;
  for (const std::string& order : every_order()) {
    set_order(order);
    const std::string report = doubles(false);
    ++(report.starts_with(read) ? reads : writes);
    EXPECT_THAT(report,
                AnyOf(AllOf(HasSubstr(read), HasSubstr("write by a copy, of another stream")),
                      AllOf(HasSubstr(write), HasSubstr("read by kernel "))));
  }
  EXPECT_GT(reads, 0);
  EXPECT_GT(writes, 0);
}

TEST_F(StreamOrder, TheHostsWaitOrdersToo) {
  for (const std::string& order : every_order()) {
    set_order(order);
    upload();
    launch_double(x_, y_, kCount, first_);
    ASSERT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
    while (cudaEventQuery(event_) == cudaErrorNotReady) {
    }
    static_cast<void>(cudaGetLastError());
    launch_double(y_, x_, kCount, second_);
    EXPECT_EQ(test::report_of(cudaStreamSynchronize(second_)), "no fault") << order;
  }
}

TEST_F(StreamOrder, BlocksThatShareGlobalMemory) {
  upload();
  launch_increments(Shared::own, y_, 4, first_);
  EXPECT_EQ(test::report_of(cudaStreamSynchronize(first_)), "no fault");
  launch_increments(Shared::atomic, y_, 4, first_);
  EXPECT_EQ(test::report_of(cudaStreamSynchronize(first_)), "no fault");
  launch_increments(Shared::plain, y_, 4, first_);
  EXPECT_THAT(test::report_of(cudaStreamSynchronize(first_)),
              AllOf(HasSubstr("race: read of byte 0 of"),
                    HasSubstr("is not ordered after the write by block 0 of this launch"),
                    HasSubstr("block (1, 0, 0)")));
}

/// Without a barrier a read races with the other warp's write, whichever comes first.
TEST_F(StreamOrder, WarpsThatShareGlobalMemory) {
  const auto exchange = [&](Exchange how) {
    upload();
    launch_exchange(how, x_, y_, first_);
    return test::report_of(cudaStreamSynchronize(first_));
  };
  const char* const unordered = " by another warp of this block: no barrier is between";
  EXPECT_EQ(exchange(Exchange::ordered), "no fault");
  EXPECT_THAT(exchange(Exchange::early_read), HasSubstr(unordered));
}

TEST_F(StreamOrder, WarpsThatOverwriteWhatOthersRead) {
  upload();
  launch_exchange(Exchange::early_write, x_, y_, first_);
  EXPECT_THAT(test::report_of(cudaStreamSynchronize(first_)),
              HasSubstr(" by another warp of this block: no barrier is between"));
}

TEST_F(StreamOrder, PageLockedMemoryIsReadWhenTheStreamComesToIt) {
  for (const std::string order : {"eager", "lazy"}) {
    set_order(order);
    pinned_[5] = 1.0F;
    ASSERT_EQ(cudaMemcpyAsync(y_, pinned_, kBytes, cudaMemcpyHostToDevice, first_), cudaSuccess);
    pinned_[5] = 2.0F;  // too early
    ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    EXPECT_EQ(download()[5], order == "eager" ? 1.0F : 2.0F);
  }
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
