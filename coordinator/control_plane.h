#pragma once

/// Heartbeats and leases between a job's ranks.

#include <memory>

#include "coordinator/coordinator.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "workers/protocol/control_channel.h"

namespace jforge {

/// A rank's control channel on its own communicators and, on rank 0, the coordinator. Until
/// close(), a rank that is silent for `config.heartbeat_limit_seconds` ends the job with exit 70.
class ControlPlane {
 public:
  /// Collective. Heartbeats report `clock`. Throws ConfigError for invalid limits.
  ControlPlane(const Communicator& comm, PhaseClock& clock, const CoordinatorConfig& config);

  [[nodiscard]] ControlChannel& channel() noexcept { return channel_; }
  /// nullptr except on rank 0.
  [[nodiscard]] Coordinator* coordinator() noexcept { return coordinator_.get(); }

  /// Collective. Ranks are unwatched afterwards: do nothing slow. The destructor only stops
  /// threads.
  void close(const Communicator& comm);

 private:
  Communicator requests_;
  Communicator replies_;
  InProcessMailbox mailbox_;
  std::unique_ptr<Coordinator> coordinator_;
  ControlChannel channel_;
};

}  // namespace jforge
