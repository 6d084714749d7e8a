#pragma once

/// Everything of a job that does not compute: heartbeats and leases between its ranks.

#include <memory>

#include "coordinator/coordinator.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "workers/protocol/control_channel.h"

namespace jforge {

/// A rank's control channel, on communicators of its own, and on rank 0 the coordinator. From
/// construction to close() a rank that is silent for `config.heartbeat_limit_seconds`, rank 0
/// among them, ends the job with exit 70.
class ControlPlane {
 public:
  /// Collective. `clock` is what heartbeats tell of this rank. Throws ConfigError for limits that
  /// heartbeats cannot keep.
  ControlPlane(const Communicator& comm, PhaseClock& clock, const CoordinatorConfig& config);

  [[nodiscard]] ControlChannel& channel() noexcept { return channel_; }
  /// Rank 0's; nullptr on the others.
  [[nodiscard]] Coordinator* coordinator() noexcept { return coordinator_.get(); }

  /// Collective over `comm`, on the normal path: a rank is watched no longer, so nothing slow may
  /// be left to do on any of them. The destructor only stops the threads.
  void close(const Communicator& comm);

 private:
  Communicator requests_;
  Communicator replies_;
  InProcessMailbox mailbox_;
  std::unique_ptr<Coordinator> coordinator_;
  ControlChannel channel_;
};

}  // namespace jforge
