#include "workers/job_kernels.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/local_rank.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"
#include "runtime/tensor/cuda_memory.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi_test.h"

namespace jforge {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(JobKernels, TheSameDeviceEverywhereIsFine) {
  const Communicator comm = jforge::test::test_world().duplicate();
  EXPECT_NO_THROW(expect_common_device(comm, Device::cpu));
  EXPECT_NO_THROW(expect_common_device(comm, Device::cuda));
  EXPECT_EQ(make_job_kernels(comm, DeviceChoice::cpu, BFloat16Sums::pairs)->device(), Device::cpu);
}

TEST(JobKernels, RankZeroLogsTheDeviceAndWhy) {
  const Communicator comm = jforge::test::test_world().duplicate();
  std::ostringstream text;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text)));
  static_cast<void>(make_job_kernels(comm, DeviceChoice::cpu, BFloat16Sums::pairs));
  if (!built_with_cuda()) {
    static_cast<void>(make_job_kernels(comm, DeviceChoice::automatic, BFloat16Sums::pairs));
  }
  spdlog::set_default_logger(before);
  if (comm.rank() != 0) {
    EXPECT_EQ(text.str(), "");
    return;
  }
  EXPECT_THAT(text.str(), HasSubstr("computing on the CPU (as asked for)"));
  if (!built_with_cuda()) {
    EXPECT_THAT(text.str(), HasSubstr("computing on the CPU (this build has no CUDA kernels)"));
  }
}

TEST(JobKernels, AllRanksAddProductsOfBfloat16InOneOrder) {
  const Communicator comm = jforge::test::test_world().duplicate();
  EXPECT_EQ(common_bfloat16_sums(comm), fastest_bfloat16_sums()) << "all ranks share a machine";
  for (const BFloat16Sums sums : {BFloat16Sums::groups, BFloat16Sums::pairs}) {
    EXPECT_EQ(make_job_kernels(comm, DeviceChoice::cpu, sums)->bfloat16_sums(), sums);
    Identity identity;
    record_bfloat16_sums(sums, identity);
    EXPECT_EQ(bfloat16_sums_of(identity), sums);
    EXPECT_EQ(identity.size(), sums == BFloat16Sums::groups ? 1U : 0U)
        << "earlier versions record nothing, and knew pairs only";
  }
}

TEST(JobKernels, RanksOfOneMachineAreCountedOnIt) {
  const Communicator comm = jforge::test::test_world().duplicate();
  EXPECT_EQ(ranks_on_host(comm), comm.size());
  EXPECT_EQ(local_rank(comm), comm.rank());
}

TEST(JobKernels, RanksThatShareADeviceAreCounted) {
  const Communicator comm = jforge::test::test_world().duplicate();
  EXPECT_EQ(ranks_that_name(comm, "0000:17:00.0"), comm.size());
  EXPECT_EQ(ranks_that_name(comm, std::to_string(comm.rank())), 1);
  EXPECT_EQ(ranks_that_name(comm, std::to_string(comm.rank() / 2)), std::min(comm.size(), 2));
}

TEST(JobKernels, HeadsThatNoDeviceTakesAreTheCpus) {
  TransformerConfig model;
  model.num_heads = 66;
  model.num_kv_heads = 2;
  model.hidden_size = 66 * 64;
  EXPECT_NO_THROW(expect_attention(Device::cpu, model));
  EXPECT_THAT(test::message_of<EnvironmentError>([&] { expect_attention(Device::cuda, model); }),
              HasSubstr("66 query heads and 2 key heads, 33 to one"))
      << "33 query heads to a key head";
  model.num_heads = 64;
  EXPECT_NO_THROW(expect_attention(Device::cuda, model));
}

TEST(JobKernels, ADifferentOneIsRefusedByAllRanks) {
  const Communicator comm = jforge::test::test_world().duplicate();
  if (comm.size() == 1) {
    EXPECT_NO_THROW(expect_common_device(comm, Device::cuda));  // no other rank to differ from
    return;
  }
  const int last = comm.size() - 1;
  for (const auto& [odd, others] :
       {std::pair{Device::cpu, Device::cuda}, std::pair{Device::cuda, Device::cpu}}) {
    EXPECT_THAT(
        test::message_of<EnvironmentError>(
            [&] { expect_common_device(comm, comm.rank() == last ? odd : others); }),
        HasSubstr(fmt::format("rank {} on {}", last, odd == Device::cpu ? "the CPU" : "a CUDA")))
        << "rank " << comm.rank() << " went on";
  }
}

RankVerdict judge(const std::vector<RankFigures>& ranks) {
  return judge_ranks(ranks, std::vector<std::string>(ranks.size(), "n1"));
}

TEST(JudgeRanks, WrongOnesAreNamed) {
  std::vector<RankFigures> ranks(5, {7, true, 1e-3, 2e-3});
  EXPECT_EQ(judge(ranks).error + judge(ranks).warning, "");
  ranks[0].digest = 8;
  ranks[3].received = false;
  EXPECT_THAT(judge(ranks).error,
              AllOf(HasSubstr("rank 0 (n1): computes another product"),
                    HasSubstr("; rank 3 (n1): receives other bytes"), Not(HasSubstr("rank 1"))));
  ranks[1].digest = ranks[2].digest = 8;
  EXPECT_THAT(judge(ranks).error, HasSubstr("rank 4 (n1): computes")) << "the majority is right";
  ranks.pop_back();
  ranks[2].digest = 7;
  EXPECT_THAT(judge(ranks).error,
              AllOf(HasSubstr("no result has a majority"), Not(HasSubstr("n1"))));
}

TEST(JudgeRanks, SlowIsThreeTimesTheMedianAndAMillisecond) {
  std::vector<RankFigures> ranks(4, {7, true, 1e-3, 2e-3});
  ranks[1].product_seconds = 2.9e-3;
  ranks[3].ring_seconds = 5.9e-3;
  EXPECT_EQ(judge(ranks).warning, "");
  ranks[1].product_seconds = 3.1e-3;
  ranks[3].ring_seconds = 6.1e-3;
  EXPECT_THAT(judge(ranks).warning, HasSubstr("take 1.0 and 2.0 ms, but rank 1 (n1): 3.1 and 2.0 "
                                              "ms; rank 3 (n1): 1.0 and 6.1 ms"));
  EXPECT_EQ(judge(ranks).error, "");
  EXPECT_EQ(judge({{7, true, 1e-4, 1e-4}, {7, true, 1e-3, 1e-4}}).warning, "");
  EXPECT_THAT(judge({{7, true, 4e-3, 1e-4}, {7, true, 1e-3, 1e-4}}).warning,
              HasSubstr("but rank 0"));
}

TEST(JobKernels, WrongRanksAreNamedOnEveryRank) {
  const Communicator comm = jforge::test::test_world().duplicate();
  const auto kernels = make_job_kernels(comm, DeviceChoice::cpu, BFloat16Sums::pairs);
  const int last = comm.size() - 1;
  for (const std::string place : {"check.product", "check.ring"}) {
    EXPECT_NO_THROW(check_ranks(comm, *kernels));
    if (comm.size() > 1) {
      arm_faults(fmt::format("nan@{}:{}:1", place, last), comm.rank());
      EXPECT_THAT(
          test::message_of<EnvironmentError>([&] { check_ranks(comm, *kernels); }),
          HasSubstr(place == "check.ring" ? "rank 0 (" + host_name() + "): receives"
                    : last == 1           ? "no result has a majority"
                                : fmt::format("rank {} ({}): computes", last, host_name())));
    }
  }
}

}  // namespace
}  // namespace jforge
