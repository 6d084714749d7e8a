#include "runtime/device/queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace jforge {
namespace {

TEST(Queue, TheInlineQueueRunsAtOnceOnTheCallingThread) {
  const auto queue = make_inline_queue();
  std::thread::id ran_on;
  queue->run([&] { ran_on = std::this_thread::get_id(); });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  queue->synchronize();
}

TEST(Queue, TheThreadQueueRunsInOrderOnOneOtherThread) {
  const auto queue = make_thread_queue();
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  // More than its first ring holds.
  constexpr int kFunctions = 1000;
  for (int i = 0; i < kFunctions; ++i) {
    queue->run([&, i] {
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
    });
  }
  queue->synchronize();
  ASSERT_EQ(order.size(), static_cast<std::size_t>(kFunctions));
  for (int i = 0; i < kFunctions; ++i) {
    EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
    EXPECT_EQ(threads[static_cast<std::size_t>(i)], threads.front());
  }
  EXPECT_NE(threads.front(), std::this_thread::get_id());
}

TEST(Queue, RunsBesideTheCaller) {
  const auto queue = make_thread_queue();
  std::atomic<bool> caller_went_on{false};
  std::atomic<bool> ran{false};
  queue->run([&] {
    while (!caller_went_on.load()) {
      std::this_thread::yield();
    }
    ran.store(true);
  });
  EXPECT_FALSE(ran.load());
  caller_went_on.store(true);
  queue->synchronize();
  EXPECT_TRUE(ran.load());
}

TEST(Queue, TheDestructorRunsWhatIsQueued) {
  int ran = 0;
  {
    const auto queue = make_thread_queue();
    for (int i = 0; i < 100; ++i) {
      queue->run([&] { ++ran; });
    }
  }
  EXPECT_EQ(ran, 100);
}

}  // namespace
}  // namespace jforge
