#pragma once

/// Queues of work that run in the order of the calls, each beside the others.

#include <functional>
#include <memory>

namespace jforge {

/// Thread: any.
class Queue {
 public:
  virtual ~Queue() = default;
  /// Runs `function` after everything that was queued before. It must not throw (std::terminate)
  /// and must not wait for this queue. A warm queue allocates nothing for a function that
  /// std::function keeps in place.
  virtual void run(std::function<void()> function) = 0;
  /// Waits until everything queued before has run.
  virtual void synchronize() = 0;
};

/// Runs each function at once on the calling thread.
[[nodiscard]] std::unique_ptr<Queue> make_inline_queue();
/// Runs functions on a thread of its own. The destructor runs what is queued first.
[[nodiscard]] std::unique_ptr<Queue> make_thread_queue();

}  // namespace jforge
