#pragma once

/// Writes and commits finished leases while decoding goes on.

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

/// One thread writes leases in order of add(). After a failure every call throws it and the queued,
/// uncommitted leases are dropped.
class LeaseWriter {
 public:
  /// Writes and commits one lease, or drops it if the commit is refused. Runs on the thread.
  using Write = std::function<void(const Lease&, const std::vector<Trajectory>&)>;

  /// Queued leases besides the one being written; add() blocks above this number.
  static constexpr std::size_t kMostWaiting = 2;

  explicit LeaseWriter(Write write);
  /// Waits until all leases are written or one has failed.
  ~LeaseWriter();
  LeaseWriter(const LeaseWriter&) = delete;
  LeaseWriter& operator=(const LeaseWriter&) = delete;

  /// Queues a lease. While it blocks, progress of the writer counts as progress of the caller.
  void add(Lease lease, std::vector<Trajectory> trajectories);
  void rethrow_failure();
  /// Waits as add() does until every lease is written.
  void finish();

 private:
  void run();
  void wait_for_at_most(std::size_t leases, std::unique_lock<std::mutex>& lock);

  Write write_;
  PhaseClock clock_;  ///< For the writer thread.
  std::mutex mutex_;
  std::condition_variable changed_;
  /// The front lease is being written.
  std::deque<std::pair<Lease, std::vector<Trajectory>>> leases_;
  std::exception_ptr failure_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace jforge
