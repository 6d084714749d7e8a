#include "runtime/tensor/buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/error.h"
#include "runtime/tensor/cuda_memory.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

TEST(Buffer, IsAlignedZeroedAndAccounted) {
  MemoryAccount account("test");
  {
    const Buffer buffer(1001, account);
    EXPECT_EQ(buffer.bytes(), 1001U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + 1001,
                            [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_EQ(account.live_bytes(), 1001U);
    const Buffer second(10, account);
    EXPECT_EQ(account.live_bytes(), 1011U);
  }
  EXPECT_EQ(account.live_bytes(), 0U);
  EXPECT_EQ(account.peak_bytes(), 1011U);
}

TEST(Buffer, LargeBlocksAreZeroedAndGivenBack) {
  MemoryAccount account("test");
  constexpr std::size_t kBytes = (std::size_t{5} << 20) + 3;
  for (int round = 0; round < 3; ++round) {
    const Buffer buffer(kBytes, account);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + kBytes,
                            [](std::byte b) { return b == std::byte{0}; }));
    std::fill_n(buffer.data(), kBytes, std::byte{7});
  }
  EXPECT_EQ(account.live_bytes(), 0U);
  EXPECT_EQ(account.peak_bytes(), kBytes);
}

TEST(Buffer, LargeBlocksAskForLargePages) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) {
    GTEST_SKIP() << "this kernel has no large pages";
  }
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "all buffers are heap blocks here";
#endif
  MemoryAccount account("pages");
  const Buffer buffer(std::size_t{4} << 20, account);
  const auto at = reinterpret_cast<std::uintptr_t>(buffer.data());
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  std::string flags;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin <= at && at < end;
    } else if (inside && line.starts_with("VmFlags:")) {
      flags = line + " ";
    }
  }
  EXPECT_NE(flags.find(" hg "), std::string::npos) << flags;
}

TEST(Buffer, EveryUseIsCountedApart) {
  MemoryAccount account("test");
  {
    Buffer weights(100, account, MemoryUse::weights);
    const Buffer other(30, account);
    const Buffer more(50, account, MemoryUse::weights);
    EXPECT_EQ(account.live_bytes(MemoryUse::weights), 150U);
    EXPECT_EQ(account.live_bytes(MemoryUse::other), 30U);
    EXPECT_EQ(account.live_bytes(), 180U);
    const Buffer moved = std::move(weights);
    EXPECT_EQ(account.live_bytes(MemoryUse::weights), 150U);
  }
  EXPECT_EQ(account.live_bytes(MemoryUse::weights), 0U);
  EXPECT_EQ(account.peak_bytes(MemoryUse::weights), 150U);
  EXPECT_EQ(account.peak_bytes(MemoryUse::gradients), 0U);
}

TEST(Buffer, AnAccountThatOnlyCountsTakesNoMemory) {
  MemoryAccount account("a large model", MemoryAccount::Backing::count_only);
  {
    const Buffer buffer(std::size_t{1} << 42, account, MemoryUse::weights);
    EXPECT_EQ(account.live_bytes(MemoryUse::weights), std::size_t{1} << 42);
  }
  EXPECT_EQ(account.live_bytes(), 0U);
}

TEST(Buffer, MovesChargeOnce) {
  MemoryAccount account("test");
  MemoryAccount other("other");
  {
    Buffer first(100, account);
    std::byte* const place = first.data();
    Buffer second(std::move(first));
    EXPECT_EQ(second.data(), place);
    EXPECT_EQ(first.data(),
              nullptr);  // NOLINT(bugprone-use-after-move): the moved-from state is what is tested
    EXPECT_EQ(first.bytes(), 0U);
    EXPECT_EQ(account.live_bytes(), 100U);
    Buffer third(50, other);
    third = std::move(second);
    EXPECT_EQ(third.data(), place);
    EXPECT_EQ(other.live_bytes(), 0U) << "what was held before is given back";
    EXPECT_EQ(account.live_bytes(), 100U);
    Buffer& same = third;
    third = std::move(same);
    EXPECT_EQ(third.data(), place);
    third = Buffer();
    EXPECT_EQ(account.live_bytes(), 0U);
  }
  EXPECT_EQ(account.live_bytes(), 0U);
}

TEST(Buffer, ViewsMustFit) {
  MemoryAccount account("test");
  const Buffer buffer(24, account);
  EXPECT_NO_THROW((void)buffer.floats({2, 3}));
  EXPECT_THROW((void)buffer.floats({7}), InternalError);
  EXPECT_NO_THROW((void)buffer.view(DType::int64, {3}));
  EXPECT_THROW((void)buffer.view(DType::int64, {4}), InternalError);
}

TEST(Buffer, TooLargeNamesSizeAndAccount) {
  MemoryAccount account("key-value cache");
  EXPECT_THAT(test::message_of<EnvironmentError>(
                  [&] { const Buffer buffer(std::size_t{1} << 60, account); }),
              ::testing::HasSubstr("1152921504606846976 bytes for key-value cache"));
  EXPECT_EQ(account.live_bytes(), 0U);
}

TEST(Buffer, DeviceMemoryWithoutADeviceIsRefused) {
  if (cuda_device_count() > 0) {
    GTEST_SKIP() << "this machine has a CUDA device";
  }
  MemoryAccount account("test");
  EXPECT_THROW(Buffer(64, account, Device::cuda), EnvironmentError);
  EXPECT_EQ(account.live_bytes(), 0U);
  EXPECT_THAT(test::message_of<EnvironmentError>([&] { expect_cuda_device(); }),
              ::testing::AllOf(::testing::HasSubstr("CUDA"),
                               ::testing::HasSubstr("model.device = \"cpu\"")));
}

TEST(CopyTensor, CopiesOnTheHost) {
  std::vector<float> from{1, 2, 3, 4, 5, 6};
  std::vector<float> to(6, 0.0F);
  copy_tensor(ConstTensorView(from.data(), {2, 3}), TensorView(to.data(), {2, 3}));
  EXPECT_EQ(to, from);
  copy_tensor(ConstTensorView(from.data(), {0, 3}), TensorView(to.data(), {0, 3}));
  zero_tensor(TensorView(to.data(), {2, 3}).rows(1, 2));
  EXPECT_THAT(to, ::testing::ElementsAre(1, 2, 3, 0, 0, 0));
}

TEST(CopyTensor, RefusesWhatDoesNotFit) {
  std::vector<float> values(6, 1.0F);
  std::vector<float> other(6, 2.0F);
  std::vector<std::int32_t> integers(6, 3);
  const ConstTensorView from(values.data(), {2, 3});
  EXPECT_THROW(copy_tensor(from, TensorView(other.data(), {3, 2})), InternalError);
  EXPECT_THROW(copy_tensor(from, TensorView(integers.data(), {2, 3})), InternalError);
  EXPECT_THROW(copy_tensor(ConstTensorView(values.data(), {5}), TensorView(values.data() + 1, {5})),
               InternalError)
      << "overlap";
  EXPECT_EQ(other, std::vector<float>(6, 2.0F));
}

TEST(TensorView, ADeviceTensorHasNoSpan) {
  float value = 0;
  const TensorView view(&value, DType::float32, {1}, Device::cuda);
  EXPECT_THROW((void)view.span<float>(), InternalError);
  EXPECT_NO_THROW((void)view.data<float>());
  EXPECT_EQ(view.rows(0, 1).device(), Device::cuda);
  EXPECT_EQ(view.reshaped({1, 1}).device(), Device::cuda);
}

TEST(MemoryAccount, CountsFromManyThreads) {
  MemoryAccount account("test");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        const Buffer buffer(64, account);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(account.live_bytes(), 0U);
  EXPECT_GE(account.peak_bytes(), 64U);
  EXPECT_LE(account.peak_bytes(), 4 * 64U);
}

}  // namespace
}  // namespace jforge
