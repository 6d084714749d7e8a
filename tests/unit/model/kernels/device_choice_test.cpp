#include "model/kernels/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/kernels/cuda/cuda_kernel_set.h"
#include "runtime/error.h"
#include "runtime/tensor/cuda_memory.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

TEST(DeviceChoice, CpuIsAlwaysThere) {
  EXPECT_EQ(resolve_device(DeviceChoice::cpu), Device::cpu);
  const auto kernels = make_kernel_set(DeviceChoice::cpu, 3);
  EXPECT_EQ(kernels->device(), Device::cpu);
  EXPECT_EQ(&kernels->host(), kernels.get());
  EXPECT_EQ(describe_device(Device::cpu, 3), "CPU");
}

TEST(DeviceChoice, WithoutADeviceAutomaticIsTheCpuAndCudaIsRefused) {
  if (cuda_device_count() > 0) {
    GTEST_SKIP() << "this machine has a CUDA device";
  }
  EXPECT_EQ(resolve_device(DeviceChoice::automatic), Device::cpu);
  EXPECT_EQ(make_kernel_set(DeviceChoice::automatic, 0)->device(), Device::cpu);
  EXPECT_THROW(static_cast<void>(resolve_device(DeviceChoice::cuda)), EnvironmentError);
  EXPECT_THROW(static_cast<void>(make_kernel_set(DeviceChoice::cuda, 0)), EnvironmentError);
  EXPECT_THROW(static_cast<void>(describe_device(Device::cuda, 0)), EnvironmentError);
  if (!built_with_cuda()) {
    EXPECT_EQ(find_cuda_devices().problem, "");
  }
  EXPECT_NO_THROW(expect_device("model.device", DeviceChoice::automatic));
  EXPECT_THAT(test::message_of<EnvironmentError>(
                  [&] { expect_device("pretrain.device", DeviceChoice::cuda); }),
              ::testing::StartsWith("pretrain.device = \"cuda\": "));
  EXPECT_THAT(test::message_of<EnvironmentError>([] { return make_cuda_kernel_set(0); }),
              ::testing::HasSubstr("CUDA"));
}

TEST(DeviceChoice, RefusesANegativeRank) {
  EXPECT_THROW(static_cast<void>(make_kernel_set(DeviceChoice::cpu, -1)), InternalError);
}

}  // namespace
}  // namespace jforge
