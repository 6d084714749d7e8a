#include "runtime/device/queue.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace jforge {

namespace {

class InlineQueue final : public Queue {
 public:
  void run(std::function<void()> function) override { run_now(function); }
  void synchronize() override {}

 private:
  static void run_now(const std::function<void()>& function) noexcept { function(); }
};

class ThreadQueue final : public Queue {
 public:
  ThreadQueue() : thread_([this] { work(); }) {}

  ~ThreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  void run(std::function<void()> function) override {
    {
      const std::lock_guard lock(mutex_);
      if (queued_ - done_ == ring_.size()) {
        grow();
      }
      ring_[queued_ % ring_.size()] = std::move(function);
      ++queued_;
    }
    changed_.notify_all();
  }

  void synchronize() override {
    std::unique_lock lock(mutex_);
    const std::uint64_t last = queued_;
    changed_.wait(lock, [&] { return done_ >= last; });
  }

 private:
  void work() noexcept {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopping_ || done_ < queued_; });
      if (done_ == queued_) {
        return;
      }
      std::function<void()> function = std::move(ring_[done_ % ring_.size()]);
      lock.unlock();
      function();
      function = nullptr;
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  /// Functions keep their numbers, which place them in the ring.
  void grow() {
    std::vector<std::function<void()>> larger(2 * ring_.size());
    for (std::uint64_t i = done_; i < queued_; ++i) {
      larger[i % larger.size()] = std::move(ring_[i % ring_.size()]);
    }
    ring_ = std::move(larger);
  }

  static constexpr std::size_t kFirstSize = 64;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> ring_ = std::vector<std::function<void()>>(kFirstSize);
  std::uint64_t queued_ = 0;
  std::uint64_t done_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Queue> make_inline_queue() { return std::make_unique<InlineQueue>(); }
std::unique_ptr<Queue> make_thread_queue() { return std::make_unique<ThreadQueue>(); }

}  // namespace jforge
