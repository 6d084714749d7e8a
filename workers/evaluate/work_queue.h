#pragma once

/// Distributes 0, 1, 2, … over ranks dynamically; faster ranks take more.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/comm/mpi_session.h"

namespace jforge {

/// Numbers [begin, end).
struct WorkLease {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(const WorkLease&) const = default;
};

/// No lease is given twice, because a dead rank ends the job.
class WorkCounter {
 public:
  /// `ends`: exclusive end of each group, ascending; the last is the total. `most` ≥ 1: numbers per
  /// lease.
  WorkCounter(std::vector<std::int64_t> ends, int ranks, std::int64_t most);

  /// Next numbers of one group. Leases shrink with the rest of the group, so that ranks finish it
  /// together. Empty if none are left or after stop().
  [[nodiscard]] WorkLease grant();
  void stop() noexcept { stopped_ = true; }
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }
  void add_finished(std::int64_t count) noexcept { finished_ += count; }
  [[nodiscard]] std::int64_t finished() const noexcept { return finished_; }
  /// A rank has no work left.
  void leave() noexcept { left_ += 1; }
  [[nodiscard]] bool all_left() const noexcept { return left_ == ranks_; }

 private:
  std::vector<std::int64_t> ends_;
  int ranks_;
  std::int64_t most_;
  std::int64_t next_ = 0;
  std::int64_t finished_ = 0;
  int left_ = 0;
  bool stopped_ = false;
};

/// A rank's end of the queue. A polling thread on rank 0 serves the others, without a coordinator.
/// A rank requests its next lease when it starts the last number of one. All calls except the
/// constructor and close() are local, never spin, and belong to one thread.
class WorkQueue {
 public:
  /// Collective. Arguments as for WorkCounter.
  WorkQueue(const Communicator& comm, std::vector<std::int64_t> ends, std::int64_t most_per_lease);
  /// Without close(), waits only for rank 0's own thread.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// This rank's next number; nothing if none is left, after a stop or, unless `wait`, before the
  /// reply.
  [[nodiscard]] std::optional<std::int64_t> peek(bool wait);
  void pop();
  /// One number is done; reported with the next message.
  void finished();
  /// Stops all ranks, others within a step or two.
  void stop();
  /// Receives messages; call once per step. True after a stop on any rank.
  bool stopped();
  /// As far as this rank knows.
  [[nodiscard]] std::int64_t finished_by_all() const;
  /// Sleeps until no rank has work left.
  void leave();
  /// Collective, after leave().
  void close();

 private:
  class Server;
  struct Message;

  void request();
  void receive();
  void take(const Message& message);
  void send(const Message& message);
  [[nodiscard]] Message message(std::int64_t kind);

  Communicator requests_;
  Communicator replies_;
  std::unique_ptr<Server> server_;  // rank 0 only
  WorkLease lease_;                 // rest of the current one
  std::optional<WorkLease> next_;   // granted, not begun
  bool asked_ = false;              // a request is open
  bool drained_ = false;            // an empty lease came
  bool stopped_ = false;
  bool all_left_ = false;
  std::int64_t unreported_ = 0;
  std::int64_t finished_by_all_ = 0;
};

/// Collective. Calls `work`, then `waiting`, then leaves the queue. An error in `work` stops the
/// others and is thrown on all, as by agree(). True if a rank stopped the work.
[[nodiscard]] bool work_together(const Communicator& comm, WorkQueue& queue,
                                 const std::function<void()>& work,
                                 const std::function<void()>& waiting);

}  // namespace jforge
