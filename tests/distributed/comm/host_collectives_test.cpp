// Collectives on their own thread over MPI give the bits of virtual ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/error.h"
#include "tests/distributed/comm/tensor_collective_cases.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi_test.h"
#include "tests/support/virtual_world.h"

namespace jforge {
namespace {

using namespace jforge::test;

TEST(HostCollectives, EveryOperationEqualsTheSerialResult) {
  check_every_operation<float>(test_world());
  check_every_operation<BFloat16>(test_world());
}

TEST(HostCollectives, QueuedOperationsRunInOrderBesideSpanCollectives) {
  check_many_queued_operations(test_world());
}

TEST(HostCollectives, VirtualRanksHaveTheSameBits) {
  const Communicator& world = test_world();
  std::vector<std::vector<std::byte>> virtual_results(static_cast<std::size_t>(world.size()));
  VirtualWorld(world.size()).run([&](const Communicator& comm) {
    virtual_results[static_cast<std::size_t>(comm.rank())] = all_results(comm);
  });
  EXPECT_EQ(all_results(world), virtual_results[static_cast<std::size_t>(world.rank())]);
}

TEST(HostCollectives, PayloadIsCountedByKind) { check_payload(test_world()); }

TEST(HostCollectives, WarmOperationsReuseTheirStates) {
  const auto collectives = make_host_collectives(test_world());
  std::vector<float> values(1000, 1.0F);
  const TensorView view(values.data(), {1000});
  for (int i = 0; i < 1000; ++i) {
    collectives->all_reduce_sum(view).wait();
    values.assign(values.size(), 1.0F);
  }
  Work empty;
  EXPECT_TRUE(empty.done());
  empty.wait();
}

TEST(HostCollectives, WaitingForALateRankBurnsNoCore) {
  const auto collectives = make_host_collectives(test_world());
  std::vector<float> values(100'000, 1.0F);
  test_world().barrier();
  constexpr auto kLate = std::chrono::milliseconds(1500);
  const std::clock_t before = std::clock();  // of all threads of this process
  if (test_world().rank() == test_world().size() - 1) {
    std::this_thread::sleep_for(kLate);
  }
  const Work work = collectives->all_reduce_sum(view_of(values));
  const auto begin = std::chrono::steady_clock::now();
  work.wait();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  const double cpu_seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(cpu_seconds, 0.5);
  EXPECT_EQ(values.back(), static_cast<float>(test_world().size()));
  // Unless this thread came late and did not have to wait.
  if (test_world().rank() == 0 && test_world().size() > 1 && waited.count() > 0.5) {
    EXPECT_GT(collectives->waited_seconds(), waited.count() / 2);
  }
}

TEST(HostCollectives, WrongTensorsAreRefusedBeforeAnythingIsQueued) {
  const auto collectives = make_host_collectives(test_world());
  std::vector<float> values(static_cast<std::size_t>(test_world().size()) * 4 + 1);
  std::vector<std::int32_t> integers(4);
  const TensorView long_view(values.data(), {static_cast<std::int64_t>(values.size())});
  const TensorView view(values.data(), {4});
  const TensorView integer_view(integers.data(), {4});
  const TensorView device_view(values.data(), DType::float32, {4}, Device::cuda);
  EXPECT_THROW((void)collectives->reduce_scatter_sum(long_view, view), InternalError);
  EXPECT_THROW((void)collectives->all_gather(view, long_view), InternalError);
  EXPECT_THROW((void)collectives->all_reduce_sum(integer_view), InternalError);
  EXPECT_THROW((void)collectives->all_reduce_sum(device_view), InternalError);
  EXPECT_THROW((void)collectives->broadcast(view, collectives->size()), InternalError);
  EXPECT_EQ(collectives->bytes().total(), 0U);
  collectives->broadcast(integer_view, 0).wait();
}

TEST(HostCollectives, AnErrorsUnwindingDoesNotWaitForRanksThatNeverCome) {
  if (test_world().size() == 1) {
    return;
  }
  std::vector<float> values(100'000, 1.0F);
  const auto begin = std::chrono::steady_clock::now();
  try {
    const auto collectives = make_host_collectives(test_world());
    if (collectives->rank() == 0) {
      const Work work = collectives->all_reduce_sum(view_of(values));
      EXPECT_FALSE(work.done());
      throw DataError("rank 0 fails");
    }
  } catch (const DataError&) {
    EXPECT_EQ(test_world().rank(), 0);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  test_world().barrier();
}

TEST(HostCollectives, AMismatchIsNamedInEveryWait) {
  if (test_world().size() == 1) {
    return;
  }
  enable_collective_checks(true);
  {
    const auto collectives = make_host_collectives(test_world());
    const bool odd = test_world().rank() == test_world().size() - 1;
    std::vector<float> values(11);
    const Work work = collectives->all_reduce_sum(TensorView(values.data(), {odd ? 11 : 10}));
    const Work after = collectives->all_reduce_sum(TensorView(values.data(), {10}));
    for (const Work& each : {work, work, after}) {
      EXPECT_THAT(test::message_of<CommError>([&] { each.wait(); }),
                  ::testing::HasSubstr("rank 0: #1 all_reduce_sum of 40 bytes"));
    }
  }
  enable_collective_checks(false);
}

}  // namespace
}  // namespace jforge
