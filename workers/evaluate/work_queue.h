#pragma once

/// Shares numbers 0, 1, 2, … out over the ranks while they work: who is quick takes more.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/comm/mpi_session.h"

namespace jforge {

/// Numbers begin … end−1, given to one rank.
struct WorkLease {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(const WorkLease&) const = default;
};

/// Which numbers are given out and who still works: pure logic. A lease is never given twice: a
/// rank that dies ends the job.
class WorkCounter {
 public:
  /// The numbers come in groups; `ends` are the first numbers behind each, ascending, the last one
  /// the total. `most` ≥ 1 numbers per lease.
  WorkCounter(std::vector<std::int64_t> ends, int ranks, std::int64_t most);

  /// The next numbers, in order and of one group: a share of what is left of it that shrinks
  /// towards one, so that ranks end it at about the same time. Empty when none are left or after
  /// stop().
  [[nodiscard]] WorkLease grant();
  void stop() noexcept { stopped_ = true; }
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }
  void add_finished(std::int64_t count) noexcept { finished_ += count; }
  [[nodiscard]] std::int64_t finished() const noexcept { return finished_; }
  /// A rank has nothing in hand any more and asks for nothing.
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

/// A rank's end of the queue. Rank 0 counts, in a thread that polls and sleeps; the others ask it
/// over communicators of the queue's own, so the queue works with and without a coordinator. A rank
/// asks for its next lease when it starts on the last number of one. All calls but the constructor
/// and close() are local, never spin, and belong to one thread.
class WorkQueue {
 public:
  /// Collective. `ends` and `most_per_lease` as for WorkCounter.
  WorkQueue(const Communicator& comm, std::vector<std::int64_t> ends, std::int64_t most_per_lease);
  /// Without close() nothing is waited for but rank 0's own thread.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// The number this rank works on next; nothing when none is left, after a stop, and, unless
  /// `wait`, while the answer is on its way.
  [[nodiscard]] std::optional<std::int64_t> peek(bool wait);
  /// Takes the number that peek() gave.
  void pop();
  /// One number's work is done; the other ranks learn of it with this rank's next message.
  void finished();
  /// Ends the work on all ranks: theirs within a step or two.
  void stop();
  /// Receives what has come; call it once per step. Whether some rank has stopped the work.
  bool stopped();
  /// Numbers finished by all ranks, as far as this one knows.
  [[nodiscard]] std::int64_t finished_by_all() const;
  /// This rank has nothing in hand any more: waits, asleep, until that is so of all ranks.
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
  std::unique_ptr<Server> server_;  // rank 0's
  WorkLease lease_;                 // what is left of the current one
  std::optional<WorkLease> next_;   // given, not begun
  bool asked_ = false;              // a request is open
  bool drained_ = false;            // an empty lease came
  bool stopped_ = false;
  bool all_left_ = false;
  std::int64_t unreported_ = 0;
  std::int64_t finished_by_all_ = 0;
};

/// Collective: `work` on every rank, then `waiting`, then this rank leaves the queue. An error in
/// `work` stops the others' work and is every rank's, as agree() has it. Whether a rank stopped the
/// work.
[[nodiscard]] bool work_together(const Communicator& comm, WorkQueue& queue,
                                 const std::function<void()>& work,
                                 const std::function<void()>& waiting);

}  // namespace jforge
