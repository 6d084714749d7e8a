#include "coordinator/control_plane.h"

#include "runtime/comm/failure_agreement.h"
#include "runtime/fault_injection.h"

namespace jforge {

namespace {

std::unique_ptr<Coordinator> start_coordinator(const Communicator& requests,
                                               const Communicator& replies,
                                               InProcessMailbox& mailbox,
                                               const CoordinatorConfig& config) {
  std::unique_ptr<Coordinator> coordinator;
  together(requests, [&] {
    if (requests.rank() == kCoordinatorRank) {
      config.validate();
      coordinator = std::make_unique<Coordinator>(requests, replies, mailbox, config);
    }
  });
  return coordinator;
}
}  // namespace

ControlPlane::ControlPlane(const Communicator& comm, PhaseClock& clock,
                           const CoordinatorConfig& config)
    : requests_(comm.duplicate()),
      replies_(comm.duplicate()),
      coordinator_(start_coordinator(requests_, replies_, mailbox_, config)),
      channel_(comm.rank() == kCoordinatorRank
                   ? make_in_process_link(mailbox_)
                   : make_mpi_link(requests_, replies_, kCoordinatorRank),
               clock, {config.heartbeat_limit_seconds, {}}) {}

void ControlPlane::close(const Communicator& comm) {
  channel_.close();
  fault_point("close");
  // The barrier lets the other ranks' last messages arrive first.
  comm.barrier();
  if (coordinator_) {
    coordinator_->close();
  }
  requests_.close();
  replies_.close();
}

}  // namespace jforge
