#pragma once

/// Writes and commits finished leases while the next ones are decoded.

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

/// Queue of finished leases with one writer thread, in order of add(). After a failure every call
/// throws it, nothing more is written and queued leases are dropped; they were never committed.
class LeaseWriter {
 public:
  /// Writes and commits one lease, or drops it if the commit is refused. Called on the thread.
  using Write = std::function<void(const Lease&, const std::vector<Trajectory>&)>;

  /// Maximum number of queued leases besides the one being written; add() blocks above it.
  static constexpr std::size_t kMostWaiting = 2;

  explicit LeaseWriter(Write write);
  /// Waits until all added leases are written or one has failed.
  ~LeaseWriter();
  LeaseWriter(const LeaseWriter&) = delete;
  LeaseWriter& operator=(const LeaseWriter&) = delete;

  /// Queues a finished lease. While it blocks, the writer's progress counts as progress of the
  /// calling thread. Throws the failure of an earlier lease.
  void add(Lease lease, std::vector<Trajectory> trajectories);
  /// Throws the failure of an earlier lease, if any.
  void rethrow_failure();
  /// Waits, with progress as in add(), until every lease is written. Throws a lease's failure.
  void finish();

 private:
  void run();
  void wait_for_at_most(std::size_t leases, std::unique_lock<std::mutex>& lock);

  Write write_;
  PhaseClock clock_;  ///< Clock of the writer thread.
  std::mutex mutex_;
  std::condition_variable changed_;
  /// The front one is being written.
  std::deque<std::pair<Lease, std::vector<Trajectory>>> leases_;
  std::exception_ptr failure_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace jforge
