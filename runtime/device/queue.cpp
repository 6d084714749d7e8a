#include "runtime/device/queue.h"

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/tensor/buffer.h"

namespace jforge {

namespace {

class InlineQueue final : public HostQueue {
 public:
  [[nodiscard]] Event record() override { return {}; }
  void wait(const Event& event) override { event.wait(); }
  void copy(const ConstTensorView& from, const TensorView& to) override { copy_tensor(from, to); }
  void zero(const TensorView& view) override { zero_tensor(view); }
  void synchronize() override {}
  void run(std::function<void()> function) override { run_now(function); }

 private:
  static void run_now(const std::function<void()>& function) noexcept { function(); }
};

/// Progress of a thread queue, kept alive by its events.
class Progress final : public Event::Source {
 public:
  [[nodiscard]] bool reached(std::uint64_t place) const override {
    const std::lock_guard lock(mutex);
    return done >= place;
  }
  void wait(std::uint64_t place) const override {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done >= place; });
  }

  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  std::uint64_t queued = 0;
  std::uint64_t done = 0;
  bool stopping = false;
};

class ThreadQueue final : public HostQueue {
 public:
  ThreadQueue() : thread_([this] { work(); }) {}

  ~ThreadQueue() override {
    {
      const std::lock_guard lock(progress_->mutex);
      progress_->stopping = true;
    }
    progress_->changed.notify_all();
    thread_.join();
  }
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  [[nodiscard]] Event record() override {
    const std::lock_guard lock(progress_->mutex);
    return Event(progress_, progress_->queued);
  }

  void wait(const Event& event) override {
    if (!event.reached()) {
      append({nullptr, event});
    }
  }

  void copy(const ConstTensorView& from, const TensorView& to) override {
    run([from, to] { copy_tensor(from, to); });
  }
  void zero(const TensorView& view) override {
    run([view] { zero_tensor(view); });
  }
  void synchronize() override { record().wait(); }
  void run(std::function<void()> function) override { append({std::move(function), {}}); }

 private:
  /// A function, or an event to wait for.
  struct Task {
    std::function<void()> function;
    Event event;
  };

  void append(Task task) {
    {
      const std::lock_guard lock(progress_->mutex);
      if (progress_->queued - progress_->done == ring_.size()) {
        grow();
      }
      ring_[progress_->queued % ring_.size()] = std::move(task);
      ++progress_->queued;
    }
    progress_->changed.notify_all();
  }

  static void perform(const Task& task) noexcept {
    if (task.function) {
      task.function();
      return;
    }
    try {
      task.event.wait();
    } catch (...) {  // NOLINT(bugprone-empty-catch): Event::wait() tells those who ask
    }
  }

  void work() noexcept {
    Progress& progress = *progress_;
    std::unique_lock lock(progress.mutex);
    for (;;) {
      progress.changed.wait(lock,
                            [&] { return progress.stopping || progress.done < progress.queued; });
      if (progress.done == progress.queued) {
        return;
      }
      Task task = std::exchange(ring_[progress.done % ring_.size()], {});
      lock.unlock();
      perform(task);
      task = {};
      lock.lock();
      ++progress.done;
      progress.changed.notify_all();
    }
  }

  /// A task's number determines its place in the ring.
  void grow() {
    std::vector<Task> larger(2 * ring_.size());
    for (std::uint64_t i = progress_->done; i < progress_->queued; ++i) {
      larger[i % larger.size()] = std::move(ring_[i % ring_.size()]);
    }
    ring_ = std::move(larger);
  }

  static constexpr std::size_t kFirstSize = 64;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  std::vector<Task> ring_ = std::vector<Task>(kFirstSize);  ///< Guarded by progress_->mutex.
  std::thread thread_;
};

}  // namespace

std::unique_ptr<HostQueue> make_inline_queue() { return std::make_unique<InlineQueue>(); }
std::unique_ptr<HostQueue> make_thread_queue() { return std::make_unique<ThreadQueue>(); }

}  // namespace jforge
