#pragma once

/// What the ranks of one machine share when they run programs.

#include <memory>

#include "runtime/comm/mpi_session.h"
#include "workers/evaluate/sandbox/host_turns.h"

namespace jforge {

struct HostPrograms {
  int threads = 1;  ///< Programs at a time for this rank: its share of the machine's cores.
  /// No more programs at a time than the machine has cores, whatever its number of ranks.
  std::unique_ptr<HostTurns> turns;
};

/// Collective. `threads`, where it is positive, instead of the share; then there are turns for as
/// many programs on every rank. Throws EnvironmentError as HostTurns.
[[nodiscard]] HostPrograms share_host_programs(const Communicator& comm, int threads = 0);

}  // namespace jforge
