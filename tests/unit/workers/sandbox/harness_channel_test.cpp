#include "workers/evaluate/sandbox/harness_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "runtime/error.h"

namespace jforge {
namespace {

using namespace std::chrono_literals;
using Clock = HarnessChannel::Clock;

class ChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(pipe2(command_.data(), O_CLOEXEC), 0);
    ASSERT_EQ(pipe2(reply_.data(), O_CLOEXEC), 0);
    fcntl(command_[1], F_SETFL, O_NONBLOCK);
    fcntl(reply_[0], F_SETFL, O_NONBLOCK);
  }
  void TearDown() override {
    for (int end : {command_[0], command_[1], reply_[0], reply_[1]}) {
      close(end);
    }
  }
  void put(const std::string& bytes) {
    ASSERT_EQ(write(reply_[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  [[nodiscard]] HarnessChannel channel() const {
    return HarnessChannel(command_[1], reply_[0], 1000);
  }

  std::array<int, 2> command_{};
  std::array<int, 2> reply_{};
};

TEST_F(ChannelTest, FramesGoBothWays) {
  HarnessChannel tested = channel();
  ASSERT_EQ(tested.send('K', "ab", "c", Clock::now() + 10s), ChannelOutcome::ok);
  std::array<char, 16> bytes{};
  ASSERT_EQ(read(command_[0], bytes.data(), bytes.size()), 8);
  EXPECT_EQ(std::string(bytes.data(), 8), std::string("K\x03\0\0\0abc", 8));
  put(std::string("V\x02\0\0\0xy", 7) + std::string("N\0\0\0\0", 5));
  HarnessFrame frame;
  ASSERT_EQ(tested.receive(frame, Clock::now() + 10s), ChannelOutcome::ok);
  EXPECT_EQ(frame.kind, 'V');
  EXPECT_EQ(frame.payload, "xy");
  ASSERT_EQ(tested.receive(frame, Clock::now() + 10s), ChannelOutcome::ok);
  EXPECT_EQ(frame.kind, 'N');
  EXPECT_EQ(frame.payload, "");
}

TEST_F(ChannelTest, TornFramesWaitUntilTheDeadline) {
  HarnessChannel tested = channel();
  HarnessFrame frame;
  put("V\x05");
  EXPECT_EQ(tested.receive(frame, Clock::now() + 50ms), ChannelOutcome::timed_out);
  EXPECT_EQ(tested.receive(frame, Clock::now() - 1s), ChannelOutcome::timed_out);
}

TEST_F(ChannelTest, ClosedAndBrokenAreTold) {
  HarnessChannel tested = channel();
  HarnessFrame frame;
  put(std::string("V\xff\xff\xff\xff", 5));
  EXPECT_EQ(tested.receive(frame, Clock::now() + 10s), ChannelOutcome::broken);
  put("x");
  EXPECT_EQ(tested.send('C', "a", {}, Clock::now() + 10s), ChannelOutcome::broken);
  close(reply_[1]);
  reply_[1] = -1;
  EXPECT_EQ(tested.receive(frame, Clock::now() + 10s), ChannelOutcome::closed);
  EXPECT_EQ(tested.send('C', "a", {}, Clock::now() + 10s), ChannelOutcome::closed);
}

TEST_F(ChannelTest, ACancelledWaitEndsWithinASecond) {
  std::atomic<bool> cancelled = false;
  std::atomic<int> looks = 0;
  int waits = 0;
  const auto look = [&] {
    const bool seen = cancelled;
    ++looks;
    return seen;
  };
  HarnessChannel tested(command_[1], reply_[0], 1 << 20, look, [&] { ++waits; });
  std::thread later([&] {
    while (looks == 0) {
      std::this_thread::sleep_for(1ms);
    }
    cancelled = true;
  });
  HarnessFrame frame;
  const auto begin = Clock::now();
  EXPECT_THROW((void)tested.receive(frame, begin + 60s), Interrupted);
  EXPECT_LT(Clock::now() - begin, 5s);
  EXPECT_GE(waits, 2) << "before and after the cancellation";
  later.join();
  EXPECT_THROW((void)tested.send('C', std::string(4 << 20, 'x'), {}, begin + 60s), Interrupted);
}

TEST_F(ChannelTest, ASenderThatNobodyReadsTimesOut) {
  HarnessChannel tested = channel();
  EXPECT_EQ(tested.send('C', std::string(4 << 20, 'x'), {}, Clock::now() + 100ms),
            ChannelOutcome::timed_out);
}

TEST_F(ChannelTest, LongFramesGoThroughAShortPipe) {
  HarnessChannel tested = channel();
  const std::string text(3 << 20, 'x');
  std::size_t got = 0;
  std::thread reader([&] {
    std::array<char, 4096> bytes{};
    while (got < text.size() + 5) {
      got += static_cast<std::size_t>(
          std::max<ssize_t>(0, read(command_[0], bytes.data(), bytes.size())));
    }
  });
  EXPECT_EQ(tested.send('S', text, {}, Clock::now() + 60s), ChannelOutcome::ok);
  reader.join();
  EXPECT_EQ(got, text.size() + 5);
}

}  // namespace
}  // namespace jforge
