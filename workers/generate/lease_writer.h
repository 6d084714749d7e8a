#pragma once

/// Finished leases are written and committed beside the decoding of the next ones.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "data/trajectories/trajectory.h"
#include "runtime/phase_clock.h"
#include "workers/protocol/messages.h"

namespace jforge {

/// A queue of finished leases and the one thread that writes them, in the order in which they were
/// added. After a failure nothing more is written, and every call throws that failure: what was
/// waiting is dropped, and its prompts belong to leases that were never committed.
class LeaseWriter {
 public:
  /// Writes and commits one lease, or drops it when the commit is refused. Called on the thread.
  using Write = std::function<void(const Lease&, const std::vector<Trajectory>&)>;

  /// Leases that wait at most while another is being written: add() waits for more room.
  static constexpr std::size_t kMostWaiting = 2;

  explicit LeaseWriter(Write write);
  /// Waits for what was added to be written, or to fail.
  ~LeaseWriter();
  LeaseWriter(const LeaseWriter&) = delete;
  LeaseWriter& operator=(const LeaseWriter&) = delete;

  /// Hands a finished lease over. While it waits, every sign of progress of what writes a lease is
  /// one of the calling thread. Throws what writing an earlier lease has thrown.
  void add(Lease lease, std::vector<Trajectory> trajectories);
  /// Throws what writing a lease has thrown; nothing otherwise.
  void rethrow_failure();
  /// Waits until every lease is written, with signs of progress as add(). Throws what writing one
  /// has thrown.
  void finish();

 private:
  void run();
  void wait_for_at_most(std::size_t leases, std::unique_lock<std::mutex>& lock);

  Write write_;
  PhaseClock clock_;  ///< The thread's.
  std::mutex mutex_;
  std::condition_variable changed_;
  /// The lease at work is the first.
  std::deque<std::pair<Lease, std::vector<Trajectory>>> leases_;
  std::exception_ptr failure_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace jforge
