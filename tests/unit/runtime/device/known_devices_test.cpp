#include "runtime/device/known_devices.h"

#include <gtest/gtest.h>

namespace jforge {
namespace {

TEST(KnownDevices, AModuleOfItsOwnSpeedIsItsOwn) {
  ASSERT_NE(find_known_device("NVIDIA H200 NVL"), nullptr);
  EXPECT_EQ(find_known_device("NVIDIA H200 NVL")->bfloat16_flops, 835e12);
  EXPECT_EQ(find_known_device("NVIDIA H200")->bfloat16_flops, 989e12);
}

TEST(KnownDevices, ASliceIsNoDevice) {
  for (const auto* const name :
       {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"}) {
    EXPECT_EQ(find_known_device(name), nullptr) << name;
  }
}

}  // namespace
}  // namespace jforge
