#pragma once

#include <memory>

#include "runtime/comm/mpi_session.h"
#include "workers/evaluate/sandbox/host_turns.h"

namespace jforge {

struct HostPrograms {
  int threads = 1;  ///< Concurrent programs of this rank: its share of the machine's cores.
  /// Limits all ranks of the machine to as many programs as it has cores.
  std::unique_ptr<HostTurns> turns;
};

/// Collective. A positive `threads` replaces the share, and every rank then has turns for as many
/// programs. Throws EnvironmentError as HostTurns.
[[nodiscard]] HostPrograms share_host_programs(const Communicator& comm, int threads = 0);

}  // namespace jforge
