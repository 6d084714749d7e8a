#include "runtime/device/queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
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
  constexpr int kFunctions = 1000;  // More than its first ring holds.
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

TEST(Queue, AnEventHappensWhenWhatWasQueuedBeforeItIsDone) {
  const auto queue = make_thread_queue();
  EXPECT_TRUE(queue->record().reached());
  EXPECT_TRUE(Event().reached());
  std::atomic<bool> go{false};
  std::atomic<int> ran{0};
  queue->run([&] {
    while (!go.load()) {
      std::this_thread::yield();
    }
    ++ran;
  });
  const Event event = queue->record();
  queue->run([&] { ++ran; });
  EXPECT_FALSE(event.reached());
  go.store(true);
  event.wait();
  EXPECT_GE(ran.load(), 1);
  EXPECT_TRUE(event.reached());
}

TEST(Queue, AThreadQueueWaitsForAnotherWithoutBlockingTheCaller) {
  const auto first = make_thread_queue();
  const auto second = make_thread_queue();
  std::atomic<bool> go{false};
  std::vector<float> values(4, 1.0F);
  std::vector<float> copied(4);
  first->run([&] {
    while (!go.load()) {
      std::this_thread::yield();
    }
    values.assign(4, 2.0F);
  });
  second->wait(first->record());
  second->copy(ConstTensorView(values.data(), {4}), TensorView(copied.data(), {4}));
  go.store(true);  // reached only if no call above waits
  second->synchronize();
  EXPECT_EQ(copied, std::vector<float>(4, 2.0F));
  second->zero(TensorView(copied.data(), {4}));
  make_inline_queue()->wait(second->record());
  EXPECT_EQ(copied, std::vector<float>(4, 0.0F));
}

class FailedSource final : public Event::Source {
 public:
  [[nodiscard]] bool reached(std::uint64_t /*place*/) const override { return false; }
  void wait(std::uint64_t /*place*/) const override { throw std::runtime_error("failed"); }
};

TEST(Queue, AFailureIsThrownWhereTheCallerWaitsAndNotOnTheQueuesThread) {
  const Event failed(std::make_shared<FailedSource>());
  EXPECT_THROW(make_inline_queue()->wait(failed), std::runtime_error);
  const auto queue = make_thread_queue();
  queue->wait(failed);
  bool ran = false;
  queue->run([&] { ran = true; });
  queue->synchronize();
  EXPECT_TRUE(ran);
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
