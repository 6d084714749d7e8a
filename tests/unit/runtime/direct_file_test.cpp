// At any address and offset, with and without the page cache.

#include "runtime/direct_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <thread>

#include "runtime/background_thread.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "runtime/read_file.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

struct Free {
  void operator()(void* memory) const noexcept { std::free(memory); }
};

class DirectFileTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 5 * DirectFile::kAlignment;

  void SetUp() override {
    std::ofstream(path_).close();
    std::filesystem::resize_file(path_, 2 * kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) {
      memory_.get()[i] = static_cast<std::byte>(i * 7 + i / 251);
    }
  }

  test::TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "values";
  std::unique_ptr<std::byte, Free> memory_{
      static_cast<std::byte*>(std::aligned_alloc(DirectFile::kAlignment, kBytes))};
};

TEST_F(DirectFileTest, AnyOffsetAddressAndSize) {
  constexpr std::uint64_t kPage = DirectFile::kAlignment;
  for (const std::uint64_t offset : {std::uint64_t{0}, kPage, kPage + 512, kPage + 1}) {
    for (const std::size_t begin : {std::size_t{0}, std::size_t{64}}) {
      for (const std::size_t size :
           {std::size_t{1}, std::size_t{kPage}, std::size_t{3 * kPage + 5}, kBytes - begin}) {
        const std::span<const std::byte> bytes(memory_.get() + begin, size);
        DirectFile file(path_);
        file.write_at(offset, bytes);
        std::vector<std::byte> back(size);
        file.read_at(offset, back);
        file.close();
        EXPECT_TRUE(std::equal(back.begin(), back.end(), bytes.begin()))
            << offset << " " << begin << " " << size;
        EXPECT_EQ(std::filesystem::file_size(path_), 2 * kBytes);
        std::vector<std::byte> range(size);
        RangeReader(path_).read(offset, range);
        EXPECT_EQ(range, back);
      }
    }
  }
}

TEST_F(DirectFileTest, FailuresNameTheFile) {
  std::vector<std::byte> behind(8);
  EXPECT_THROW(DirectFile(directory_.path() / "absent"), EnvironmentError);
  EXPECT_THROW(DirectFile(path_).read_at(2 * kBytes - 4, behind), EnvironmentError);
  EXPECT_THROW(RangeReader(path_).read(2 * kBytes - 4, behind), DataError);
  EXPECT_THROW(RangeReader(directory_.path() / "absent"), DataError);
  const test::FileSizeLimit limit(kBytes);
  EXPECT_THAT(test::message_of<EnvironmentError>([&] {
                DirectFile(path_).write_at(kBytes, {memory_.get(), kBytes});
              }),
              ::testing::HasSubstr("cannot write " + path_.string() + ": disk full"));
}

TEST(HashStream, PiecesGiveTheHashOfTheWhole) {
  const std::string text(3000, 'x');
  HashStream stream;
  EXPECT_EQ(stream.digest(), hash64(std::string_view()));
  for (std::size_t begin = 0; begin < text.size(); begin += 700) {
    stream.update(std::as_bytes(
        std::span(text).subspan(begin, std::min<std::size_t>(700, text.size() - begin))));
  }
  EXPECT_EQ(stream.digest(), hash64(text));
}

TEST(BackgroundThread, OnlyTheCallingThreadYields) {
  int nice = -1;
  int policy = -1;
  std::thread([&] {
    yield_to_other_threads();
    nice = ::getpriority(PRIO_PROCESS, 0);
    policy = ::sched_getscheduler(0);
  }).join();
  EXPECT_EQ(nice, 19);
  EXPECT_EQ(policy, SCHED_BATCH);
  EXPECT_LT(::getpriority(PRIO_PROCESS, 0), 19);
  EXPECT_NE(::sched_getscheduler(0), SCHED_BATCH);
}

}  // namespace
}  // namespace jforge
