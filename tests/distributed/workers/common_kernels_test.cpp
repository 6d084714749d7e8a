// A job whose ranks would compute on different kinds of device does not start.

#include "workers/common_kernels.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "runtime/error.h"
#include "tests/support/mpi_test.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;

TEST(CommonKernels, TheSameDeviceEverywhereIsFine) {
  const Communicator comm = jforge::testing::test_world().duplicate();
  EXPECT_NO_THROW(expect_common_device(comm, Device::cpu));
  EXPECT_NO_THROW(expect_common_device(comm, Device::cuda));
  EXPECT_EQ(make_common_kernel_set(comm, DeviceChoice::cpu)->device(), Device::cpu);
}

TEST(CommonKernels, ADifferentOneIsRefusedByAllRanks) {
  const Communicator comm = jforge::testing::test_world().duplicate();
  if (comm.size() == 1) {
    GTEST_SKIP() << "one rank has nobody to differ from";
  }
  const int last = comm.size() - 1;
  for (const auto& [odd, others] :
       {std::pair{Device::cpu, Device::cuda}, std::pair{Device::cuda, Device::cpu}}) {
    try {
      expect_common_device(comm, comm.rank() == last ? odd : others);
      FAIL() << "rank " << comm.rank() << " went on";
    } catch (const EnvironmentError& error) {
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {} on {}", last,
                                                      odd == Device::cpu ? "the CPU" : "a CUDA")));
    }
  }
}

}  // namespace
}  // namespace jforge
