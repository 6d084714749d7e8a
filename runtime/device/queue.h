#pragma once

/// Queues that run work in call order, concurrently with each other, and events between them.
/// Kernels (KernelSet::queue) and collectives (Collectives::queue) have one each.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Happens once, such as a collective's end. Copyable, thread-safe; an empty event has happened.
class Event {
 public:
  /// `place` distinguishes the events of a source.
  class Source {
   public:
    virtual ~Source() = default;
    [[nodiscard]] virtual bool reached(std::uint64_t place) const = 0;
    virtual void wait(std::uint64_t place) const = 0;
  };
  Event() = default;
  explicit Event(std::shared_ptr<const Source> source, std::uint64_t place = 0)
      : source_(std::move(source)), place_(place) {}

  /// Returns whether wait() would return or throw at once.
  [[nodiscard]] bool reached() const { return source_ == nullptr || source_->reached(place_); }
  /// Blocks the calling thread. Every call throws the source's error, if any.
  void wait() const {
    if (source_ != nullptr) {
      source_->wait(place_);
    }
  }
  [[nodiscard]] const Source* source() const noexcept { return source_.get(); }

 private:
  std::shared_ptr<const Source> source_;
  std::uint64_t place_ = 0;
};

/// Thread-safe.
class Queue {
 public:
  virtual ~Queue() = default;
  /// Returns an event for the end of all work queued so far.
  [[nodiscard]] virtual Event record() = 0;
  /// Work queued later begins after `event`. A queue on the calling thread blocks it and throws the
  /// source's error. Other queues go on after an error, which Event::wait() reports.
  virtual void wait(const Event& event) = 0;
  /// copy_tensor() and zero_tensor(), in queue order.
  virtual void copy(const ConstTensorView& from, const TensorView& to) = 0;
  virtual void zero(const TensorView& view) = 0;
  /// Waits for all work queued so far.
  virtual void synchronize() = 0;
};

class HostQueue : public Queue {
 public:
  /// Runs `function` after all queued work. It must not throw or wait for this queue. A warm queue
  /// does not allocate if std::function stores it in place.
  virtual void run(std::function<void()> function) = 0;
};

/// Runs everything at once on the calling thread.
[[nodiscard]] std::unique_ptr<HostQueue> make_inline_queue();
/// Runs on its own thread. The destructor finishes queued work.
[[nodiscard]] std::unique_ptr<HostQueue> make_thread_queue();

}  // namespace jforge
