#include "runtime/tensor/buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/error.h"

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
  try {
    const Buffer buffer(std::size_t{1} << 60, account);
    FAIL() << "no exception";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("1152921504606846976 bytes for key-value cache"));
  }
  EXPECT_EQ(account.live_bytes(), 0U);
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
