/// On a machine with one device only this tests the installed NCCL: training with one rank does not
/// use it.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "runtime/comm/nccl_library.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/error.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/cuda_stream_queue.h"
#include "tests/support/mpi_test.h"
#include "tests/support/tested_kernel_set.h"

namespace jforge::test {
namespace {

constexpr std::int64_t kCount = 100'003;

class NcclOneRank : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(test_world().size(), 1) << "start it with one rank";
    const NcclLibrary& nccl = nccl_library();
    if (nccl.get_version == nullptr) {
      // A library that lacks a function is a failure.
      ASSERT_NE(nccl.problem.find("cannot be opened"), std::string::npos) << nccl.problem;
      GTEST_SKIP() << nccl.problem;
    }
    int version = 0;
    ASSERT_EQ(nccl.get_version(&version), ncclSuccess);
    std::printf("NCCL version %d\n", version);
    ASSERT_EQ(nccl.problem, "");
    kernels_ = make_tested_kernel_set();  // selects the device
  }
  void TearDown() override { EXPECT_EQ(account_.live_bytes(), 0U); }

  /// Returns whole numbers that are exact in bfloat16.
  static std::vector<float> numbers(std::int64_t seed) {
    std::vector<float> values(kCount);
    for (std::int64_t i = 0; i < kCount; ++i) {
      values[static_cast<std::size_t>(i)] = static_cast<float>((i * 31 + seed * 7) % 127) - 60;
    }
    return values;
  }

  class Values {
   public:
    Values(NcclOneRank& test, DType type, std::int64_t seed)
        : kernels_(*test.kernels_),
          account_(test.account_),
          buffer_(storage_bytes(kCount, type), account_, Device::cuda),
          view_(buffer_.view(type, {kCount})) {
      const std::vector<float> host = numbers(seed);
      const Buffer floats(storage_bytes(kCount, DType::float32), account_, Device::cuda);
      copy_tensor(ConstTensorView(host.data(), {kCount}), floats.floats({kCount}));
      kernels_.convert(floats.floats({kCount}), view_);
    }
    [[nodiscard]] const TensorView& view() const { return view_; }
    [[nodiscard]] std::vector<float> read() const {
      std::vector<float> host(kCount);
      const Buffer floats(storage_bytes(kCount, DType::float32), account_, Device::cuda);
      kernels_.convert(view_, floats.floats({kCount}));
      copy_tensor(floats.floats({kCount}), TensorView(host.data(), {kCount}));
      return host;
    }

   private:
    KernelSet& kernels_;
    MemoryAccount& account_;
    Buffer buffer_;
    TensorView view_;
  };

  /// Between kernels that make inputs and read outputs, ordered by events alone.
  void check_operations(Collectives& nccl, DType type) {
    Queue& queue = kernels_->queue();
    const auto ready = [&] { nccl.queue().wait(queue.record()); };
    const Values one(*this, type, 1);
    const Values two(*this, type, 2);
    const Values sum(*this, type, 3);
    const Values gathered(*this, type, 4);
    std::vector<float> expected = numbers(1);

    ready();
    nccl.all_reduce_sum(one.view()).before(queue);
    kernels_->add(two.view(), one.view());  // one + two
    const std::vector<float> second = numbers(2);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] += second[i];
    }
    ready();
    nccl.reduce_scatter_sum(one.view(), sum.view()).before(queue);
    EXPECT_EQ(sum.read(), expected) << "reduce_scatter_sum";
    ready();
    nccl.all_gather(sum.view(), gathered.view()).before(queue);
    queue.zero(one.view());
    EXPECT_EQ(gathered.read(), expected) << "all_gather";
    ready();
    const Work last = nccl.broadcast(gathered.view(), 0);
    last.wait();
    EXPECT_TRUE(last.done());
    EXPECT_EQ(gathered.read(), expected) << "broadcast";
  }

  MemoryAccount account_{"one rank"};
  std::unique_ptr<KernelSet> kernels_;
};

TEST_F(NcclOneRank, RunsEveryOperationAndEnds) {
  auto nccl = make_nccl_collectives(test_world());
  EXPECT_EQ(nccl->size(), 1);
  check_operations(*nccl, DType::float32);
  check_operations(*nccl, DType::bfloat16);
  EXPECT_EQ(nccl->bytes().total(), 0U) << "one rank sends nothing";
  nccl.reset();
  kernels_->queue().synchronize();
}

/// The device and the next communicator must still work.
TEST_F(NcclOneRank, IsAbortedByAnError) {
  {
    const Values values(*this, DType::float32, 1);
    try {
      const auto nccl = make_nccl_collectives(test_world());
      nccl->queue().wait(kernels_->queue().record());
      nccl->all_reduce_sum(values.view()).wait();
      EXPECT_EQ(values.read(), numbers(1));
      const Work unread = nccl->all_reduce_sum(values.view());
      throw DataError("this rank fails");
    } catch (const DataError&) {
    }
  }
  auto next = make_nccl_collectives(test_world());
  check_operations(*next, DType::float32);
}

/// The end of Collectives reports no errors.
TEST_F(NcclOneRank, NoCallOfItsEndFails) {
  const NcclLibrary& nccl = nccl_library();
  const auto check = [&](ncclResult_t result, ncclComm_t comm, const char* what) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (result == ncclInProgress && std::chrono::steady_clock::now() < deadline) {
      const ncclResult_t asked = nccl.comm_get_async_error(comm, &result);
      result = asked == ncclSuccess ? result : asked;
    }
    ASSERT_EQ(result, ncclSuccess) << what << ": " << nccl.get_error_string(result);
  };
  // It cannot be asked for its progress any more.
  const auto ended = [&](ncclResult_t result) {
    EXPECT_TRUE(result == ncclSuccess || result == ncclInProgress) << nccl.get_error_string(result);
  };
  for (const bool aborted : {false, true}) {
    SCOPED_TRACE(aborted ? "aborted" : "finalized and destroyed");
    ncclUniqueId id{};
    ASSERT_EQ(nccl.get_unique_id(&id), ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // like Collectives' communicators
    ncclComm_t comm = nullptr;
    const ncclResult_t begun = nccl.comm_init_rank_config(&comm, 1, id, 0, &config);
    check(begun, comm, "init");
    ASSERT_FALSE(HasFatalFailure());
    const Values values(*this, DType::float32, 1);
    CudaQueue queue;
    queue.wait(kernels_->queue().record());
    check(nccl.all_reduce(values.view().raw(), values.view().raw(), kCount, ncclFloat32, ncclSum,
                          comm, queue.stream().get()),
          comm, "all_reduce");
    ASSERT_FALSE(HasFatalFailure());
    queue.synchronize();
    EXPECT_EQ(values.read(), numbers(1));
    if (aborted) {
      ended(nccl.comm_abort(comm));
      continue;
    }
    check(nccl.comm_finalize(comm), comm, "finalize");
    ASSERT_FALSE(HasFatalFailure());
    ended(nccl.comm_destroy(comm));
  }
}

}  // namespace
}  // namespace jforge::test
