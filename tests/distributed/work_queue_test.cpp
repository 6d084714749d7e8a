#include "tests/distributed/evaluate_fixture.h"

namespace jforge {
namespace {

using namespace jforge::test;

TEST(WorkQueueTest, EveryNumberGoesToOneRankAndAllLeaveTogether) {
  constexpr std::int64_t kTotal = 200;
  WorkQueue queue(test_world(), {40, kTotal}, 7);
  std::vector<std::int32_t> mine(kTotal, 0);
  std::int64_t last = -1;
  while (const auto number = queue.peek(true)) {
    EXPECT_EQ(queue.peek(true), number) << "peek() takes nothing";
    EXPECT_GT(*number, last);
    last = *number;
    mine[static_cast<std::size_t>(*number)] += 1;
    queue.pop();
    queue.finished();
    EXPECT_FALSE(queue.stopped());
  }
  queue.leave();
  EXPECT_EQ(queue.finished_by_all(), kTotal);
  queue.close();
  all_reduce_sum(test_world(), std::span(mine));
  EXPECT_THAT(mine, ::testing::Each(1));
}

TEST(WorkQueueTest, AStopReachesRanksThatAskForNothing) {
  WorkQueue queue(test_world(), {1000}, 100);
  ASSERT_TRUE(queue.peek(true).has_value());
  test_world().barrier();
  if (test_world().rank() == test_world().size() - 1) {
    queue.stop();
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!queue.stopped() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(queue.stopped());
  EXPECT_FALSE(queue.peek(true).has_value());
  queue.leave();
  queue.close();
}

TEST(WorkQueueTest, AnEmptyQueueEndsAtOnce) {
  WorkQueue queue(test_world(), {}, 4);
  EXPECT_FALSE(queue.peek(true).has_value());
  queue.leave();
  queue.close();
}

}  // namespace
}  // namespace jforge
