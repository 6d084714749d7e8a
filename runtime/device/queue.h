#pragma once

/// Queues of work that run in the order of the calls, each beside the others, and the events by
/// which one waits for another. Kernels (KernelSet::queue) and collectives (Collectives::queue)
/// have one each.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Something that happens once: a queue gets to a place, a collective ends. Copyable; an empty one
/// has happened. Thread: any.
class Event {
 public:
  /// What events are of. `place` tells those of one source apart.
  class Source {
   public:
    virtual ~Source() = default;
    [[nodiscard]] virtual bool reached(std::uint64_t place) const = 0;
    virtual void wait(std::uint64_t place) const = 0;
  };
  Event() = default;
  explicit Event(std::shared_ptr<const Source> source, std::uint64_t place = 0)
      : source_(std::move(source)), place_(place) {}

  /// Whether wait() would return (or throw) at once.
  [[nodiscard]] bool reached() const { return source_ == nullptr || source_->reached(place_); }
  /// Blocks the calling thread. Throws what made the source fail, in every call.
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

/// Thread: any.
class Queue {
 public:
  virtual ~Queue() = default;
  /// Happens when everything queued so far is done.
  [[nodiscard]] virtual Event record() = 0;
  /// What is queued from now on begins after `event`. Only a queue that runs on the calling thread
  /// blocks it, and throws what the event's source failed of; elsewhere that is for
  /// Event::wait() to tell, and the queue goes on.
  virtual void wait(const Event& event) = 0;
  /// copy_tensor() and zero_tensor() in the queue's order.
  virtual void copy(const ConstTensorView& from, const TensorView& to) = 0;
  virtual void zero(const TensorView& view) = 0;
  /// Waits until everything queued before is done.
  virtual void synchronize() = 0;
};

/// A queue of the host, which also runs functions.
class HostQueue : public Queue {
 public:
  /// Runs `function` after everything that was queued before. It must not throw (std::terminate)
  /// and must not wait for this queue. A warm queue allocates nothing for a function that
  /// std::function keeps in place.
  virtual void run(std::function<void()> function) = 0;
};

/// Does everything at once on the calling thread.
[[nodiscard]] std::unique_ptr<HostQueue> make_inline_queue();
/// Has a thread of its own. The destructor runs what is queued first.
[[nodiscard]] std::unique_ptr<HostQueue> make_thread_queue();

}  // namespace jforge
