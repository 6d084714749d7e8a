#pragma once

/// Distributes the numbers 0, 1, 2, … dynamically; faster ranks take more.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/comm/mpi_session.h"

namespace jforge {

/// Numbers [begin, end) for one rank.
struct WorkLease {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(const WorkLease&) const = default;
};

/// Logic of the queue. No lease is given twice, because a dead rank ends the job.
class WorkCounter {
 public:
  /// `ends`: exclusive end of each group of numbers, ascending; the last is the total. At most
  /// `most` ≥ 1 numbers per lease.
  WorkCounter(std::vector<std::int64_t> ends, int ranks, std::int64_t most);

  /// Returns the next numbers of one group. Leases shrink with the rest of the group, so that ranks
  /// finish it at about the same time. Empty if none are left or after stop().
  [[nodiscard]] WorkLease grant();
  void stop() noexcept { stopped_ = true; }
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }
  void add_finished(std::int64_t count) noexcept { finished_ += count; }
  [[nodiscard]] std::int64_t finished() const noexcept { return finished_; }
  /// Called when a rank has no work left and asks for none.
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

/// A rank's end of the queue. A polling thread on rank 0 serves the other ranks over own
/// communicators, so no coordinator is needed. A rank requests its next lease when it starts the
/// last number of one. All calls except the constructor and close() are local, never spin, and
/// belong to one thread.
class WorkQueue {
 public:
  /// Collective. Arguments as for WorkCounter.
  WorkQueue(const Communicator& comm, std::vector<std::int64_t> ends, std::int64_t most_per_lease);
  /// Without close(), waits for rank 0's own thread only.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// Next number of this rank; nothing if none is left, after a stop or, unless `wait`, while a
  /// reply is on its way.
  [[nodiscard]] std::optional<std::int64_t> peek(bool wait);
  /// Takes the number returned by peek().
  void pop();
  /// One number is done; reported to the other ranks with the next message.
  void finished();
  /// Stops the work on all ranks; others notice within a step or two.
  void stop();
  /// Receives messages; call once per step. True if any rank has stopped the work.
  bool stopped();
  /// As far as known here.
  [[nodiscard]] std::int64_t finished_by_all() const;
  /// This rank has no work left. Sleeps until that is true of all ranks.
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
/// other ranks and is thrown on all, as by agree(). Returns whether a rank stopped the work.
[[nodiscard]] bool work_together(const Communicator& comm, WorkQueue& queue,
                                 const std::function<void()>& work,
                                 const std::function<void()>& waiting);

}  // namespace jforge
