/// Tests NCCL's stand-in between processes. Runs with the emulated libraries.

#include <gmock/gmock.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <thread>

#include "tests/cuda_emulator/emulated_device_test.h"
#include "tests/cuda_emulator/faulty_kernels.cuh"

namespace jforge::test {
namespace {

constexpr std::size_t kPart = 64;

class Rank {
 public:
  Rank(int rank, int ranks, ncclUniqueId id, int device, const std::string& order)
      : rank_(rank), ranks_(ranks) {
    setenv("JFORGE_EMULATED_DEVICES", "8", 1);
    setenv("JFORGE_EMULATED_ORDER", order.c_str(), 1);
    require(cudaDeviceReset() == cudaSuccess && cudaSetDevice(device) == cudaSuccess, "device");
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess, "stream");
    require(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking) == cudaSuccess, "stream");
    require(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming) == cudaSuccess, "event");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    started_ = ncclCommInitRankConfig(&comm_, ranks, id, rank, &config);
    if (started_ == ncclInProgress) {
      started_ = settled();
    }
  }
  [[nodiscard]] ncclResult_t started() const { return started_; }
  [[nodiscard]] ncclResult_t settled() const {
    ncclResult_t result = ncclInProgress;
    while (result == ncclInProgress) {
      require(ncclCommGetAsyncError(comm_, &result) == ncclSuccess, "asynchronous result");
    }
    return result;
  }
  void end() {
    require(cudaStreamSynchronize(stream_) == cudaSuccess, "synchronise");
    static_cast<void>(ncclCommFinalize(comm_));
    require(settled() == ncclSuccess && ncclCommDestroy(comm_) == ncclSuccess, "end");
  }

  template <class T>
  T* allocate(const std::vector<T>& values) {
    void* memory = nullptr;
    require(cudaMalloc(&memory, values.size() * sizeof(T)) == cudaSuccess, "allocate");
    require(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice) ==
                cudaSuccess,
            "copy to the device");
    return static_cast<T*>(memory);
  }
  template <class T>
  std::vector<T> download(const T* memory, std::size_t count) {
    std::vector<T> values(count);
    require(cudaStreamSynchronize(stream_) == cudaSuccess, "synchronise");
    require(
        cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess,
        "copy to the host");
    return values;
  }
  /// The parent sees `what`.
  static void require(bool holds, const std::string& what) {
    if (!holds) {
      std::fprintf(stderr, "rank failed: %s: %s\n", what.c_str(),
                   cudaGetErrorString(cudaPeekAtLastError()));
      _exit(1);
    }
  }

  int rank_;
  int ranks_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t other_ = nullptr;
  cudaEvent_t event_ = nullptr;
  ncclComm_t comm_ = nullptr;

 private:
  ncclResult_t started_ = ncclSuccess;
};

bool all_end_well(int ranks, const std::function<void(int rank)>& work) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = fork();
    if (process == 0) {
      constexpr unsigned kMostSeconds = 60;
      alarm(kMostSeconds);
      work(rank);
      _exit(0);
    }
    processes.push_back(process);
  }
  bool well = true;
  for (const pid_t process : processes) {
    int status = 0;
    well = waitpid(process, &status, 0) == process && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0 && well;
  }
  return well;
}

ncclUniqueId new_id() {
  ncclUniqueId id{};
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  return id;
}

std::vector<float> numbers(std::size_t count, int rank) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), static_cast<float>(100 * rank));
  return values;
}
float sum_of(int ranks, std::size_t i) {
  return static_cast<float>(ranks) * static_cast<float>(i) +
         static_cast<float>(100 * ranks * (ranks - 1) / 2);
}

TEST(Nccl, CollectivesAreRight) {
  constexpr int kRanks = 8;
  const std::array<std::string, 3> orders{"eager", "lazy", "random:3"};
  const ncclUniqueId id = new_id();
  EXPECT_TRUE(all_end_well(kRanks, [&](int rank) {
    Rank own(rank, kRanks, id, rank, orders[static_cast<std::size_t>(rank) % orders.size()]);
    Rank::require(own.started() == ncclSuccess, "start");
    constexpr std::size_t kAll = kRanks * kPart;
    float* const sums = own.allocate(numbers(kPart, rank));
    float* const scattered = own.allocate(numbers(kAll, rank));
    float* const gathered = own.allocate(numbers(kAll, rank));
    float* const sent = own.allocate(numbers(kPart, rank));
    const auto place = static_cast<std::size_t>(rank) * kPart;
    Rank::require(ncclAllReduce(sums, sums, kPart, ncclFloat32, ncclSum, own.comm_, own.stream_) ==
                      ncclSuccess,
                  "AllReduce");
    Rank::require(ncclReduceScatter(scattered, scattered + place, kPart, ncclFloat32, ncclSum,
                                    own.comm_, own.stream_) == ncclSuccess,
                  "ReduceScatter");
    Rank::require(ncclAllGather(gathered + place, gathered, kPart, ncclFloat32, own.comm_,
                                own.stream_) == ncclSuccess,
                  "AllGather");
    Rank::require(
        ncclBroadcast(sent, sent, kPart, ncclFloat32, 1, own.comm_, own.stream_) == ncclSuccess,
        "Broadcast");
    for (std::size_t i = 0; i < kPart; ++i) {
      Rank::require(own.download(sums, kPart)[i] == sum_of(kRanks, i), "sum");
      Rank::require(own.download(scattered, kAll)[place + i] == sum_of(kRanks, place + i),
                    "scattered sum");
      Rank::require(own.download(sent, kPart)[i] == numbers(kPart, 1)[i], "what was sent");
    }
    const std::vector<float> all = own.download(gathered, kAll);
    for (std::size_t i = 0; i < kAll; ++i) {
      const auto from = static_cast<int>(i / kPart);
      Rank::require(all[i] == numbers(kAll, from)[i], "gathered part");
    }
    own.end();
  }));
}

/// 256 + 1 + 1 is 258 if rounded once, else 256.
TEST(Nccl, BfloatSumsAreRoundedOnce) {
  const auto bits = [](float value) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  };
  const ncclUniqueId id = new_id();
  EXPECT_TRUE(all_end_well(3, [&](int rank) {
    Rank own(rank, 3, id, rank, "lazy");
    std::uint16_t* const values =
        own.allocate(std::vector<std::uint16_t>{bits(rank == 0 ? 256.0F : 1.0F)});
    Rank::require(ncclAllReduce(values, values, 1, ncclBfloat16, ncclSum, own.comm_, own.stream_) ==
                      ncclSuccess,
                  "AllReduce");
    Rank::require(own.download(values, 1)[0] == bits(258.0F), "sum");
    own.end();
  }));
}

TEST(Nccl, ABlockedHostHoldsNobodyUp) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  const ncclUniqueId id = new_id();
  EXPECT_TRUE(all_end_well(2, [&](int rank) {
    Rank own(rank, 2, id, rank, "lazy");
    float* const sums = own.allocate(numbers(kPart, rank));
    Rank::require(ncclAllReduce(sums, sums, kPart, ncclFloat32, ncclSum, own.comm_, own.stream_) ==
                      ncclSuccess,
                  "AllReduce");
    char byte = 0;
    if (rank == 0) {
      Rank::require(read(pipe_ends[0], &byte, 1) == 1, "word from the other rank");
    } else {
      Rank::require(cudaStreamSynchronize(own.stream_) == cudaSuccess, "synchronise");
      Rank::require(write(pipe_ends[1], &byte, 1) == 1, "word to the other rank");
    }
    own.end();
  }));
}

TEST(Nccl, DifferentCallsAreNamed) {
  const ncclUniqueId id = new_id();
  EXPECT_TRUE(all_end_well(2, [&](int rank) {
    Rank own(rank, 2, id, rank, "lazy");
    float* const values = own.allocate(numbers(kPart, rank));
    const std::size_t count = rank == 0 ? kPart : kPart / 2;
    static_cast<void>(
        ncclAllReduce(values, values, count, ncclFloat32, ncclSum, own.comm_, own.stream_));
    Rank::require(cudaStreamSynchronize(own.stream_) == cudaErrorLaunchFailure, "a failure");
    const std::string report = cudaGetErrorString(cudaErrorLaunchFailure);
    const std::string expected = rank == 0 ? "AllReduce of 64 float32 on rank 0, AllReduce of 32"
                                           : "AllReduce of 32 float32 on rank 1, AllReduce of 64";
    Rank::require(report.find(expected) != std::string::npos, report);
    Rank::require(own.settled() == ncclInvalidUsage, "asynchronous result");
    Rank::require(std::string(ncclGetLastError(own.comm_)).find(expected) != std::string::npos,
                  "message");
    Rank::require(ncclCommAbort(own.comm_) == ncclSuccess, "abort");
  }));
}

/// The survivor's watchdog frees it from a sum that never comes.
TEST(Nccl, ADeadRankShowsAndAbortFrees) {
  const ncclUniqueId id = new_id();
  EXPECT_TRUE(all_end_well(2, [&](int rank) {
    Rank own(rank, 2, id, rank, rank == 0 ? "lazy" : "eager");
    Rank::require(own.started() == ncclSuccess, "start");
    if (rank == 1) {
      return;
    }
    float* const values = own.allocate(numbers(kPart, rank));
    std::thread watchdog([&] {
      ncclResult_t result = ncclSuccess;
      while (result == ncclSuccess) {
        Rank::require(ncclCommGetAsyncError(own.comm_, &result) == ncclSuccess, "result");
      }
      Rank::require(result == ncclRemoteError, "a remote error");
      Rank::require(
          std::string(ncclGetLastError(own.comm_)) == "NCCL: rank 1 is gone before its call 0",
          ncclGetLastError(own.comm_));
      Rank::require(ncclCommAbort(own.comm_) == ncclSuccess, "abort");
    });
    Rank::require(ncclAllReduce(values, values, kPart, ncclFloat32, ncclSum, own.comm_,
                                own.stream_) == ncclSuccess,
                  "AllReduce");
    Rank::require(cudaStreamSynchronize(own.stream_) == cudaSuccess, "synchronise");
    watchdog.join();
    Rank::require(ncclAllReduce(values, values, kPart, ncclFloat32, ncclSum, own.comm_,
                                own.stream_) == ncclInvalidArgument,
                  "a call after the abort");
  }));
}

TEST(Nccl, TwoRanksOnOneDeviceAreRefused) {
  const ncclUniqueId id = new_id();
  EXPECT_TRUE(all_end_well(2, [&](int rank) {
    Rank own(rank, 2, id, 0, "lazy");
    Rank::require(own.started() == ncclInvalidUsage, "refusal");
    Rank::require(
        std::string(ncclGetLastError(own.comm_)).find("on one device (0)") != std::string::npos,
        ncclGetLastError(own.comm_));
  }));
}

TEST(Nccl, AThreadThatForgetsItsDeviceIsRefused) {
  EXPECT_TRUE(all_end_well(1, [&](int /*rank*/) {
    Rank own(0, 1, new_id(), 1, "lazy");
    std::thread([] {
      void* memory = nullptr;
      Rank::require(cudaMalloc(&memory, 1) == cudaErrorNotSupported, "refusal");
    }).join();
    std::thread([&own] {
      Rank::require(cudaStreamSynchronize(own.stream_) == cudaErrorNotSupported,
                    "a wait's refusal");
    }).join();
    const std::string report = cudaGetErrorString(cudaErrorNotSupported);
    Rank::require(report.find("device 0 in a process that uses device 1") != std::string::npos,
                  report);
  }));
}

TEST(Nccl, AMissingWaitShows) {
  for (const bool with_wait : {true, false}) {
    const ncclUniqueId id = new_id();
    EXPECT_EQ(all_end_well(
                  2,
                  [&](int rank) {
                    Rank own(rank, 2, id, rank, "lazy");
                    float* const values = own.allocate(numbers(kPart, rank));
                    float* const twice = own.allocate(std::vector<float>(kPart));
                    launch_double(values, twice, kPart, own.other_);
                    Rank::require(cudaEventRecord(own.event_, own.other_) == cudaSuccess, "record");
                    if (with_wait) {
                      Rank::require(cudaStreamWaitEvent(own.stream_, own.event_, 0) == cudaSuccess,
                                    "wait");
                    }
                    Rank::require(ncclAllReduce(twice, twice, kPart, ncclFloat32, ncclSum,
                                                own.comm_, own.stream_) == ncclSuccess,
                                  "AllReduce");
                    Rank::require(own.download(twice, kPart)[1] == 2.0F * sum_of(2, 1), "sum");
                    own.end();
                  }),
              with_wait);
  }
}

}  // namespace
}  // namespace jforge::test
