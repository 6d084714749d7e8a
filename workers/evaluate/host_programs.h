#pragma once

#include <memory>

#include "runtime/comm/mpi_session.h"
#include "workers/evaluate/sandbox/host_turns.h"

namespace jforge {

struct HostPrograms {
  int threads = 1;  ///< For this rank.
  /// At most as many programs as the machine has cores, over all its ranks.
  std::unique_ptr<HostTurns> turns;
};

/// Collective. By default a rank gets its share of the cores. A positive `threads` replaces it,
/// with turns for as many on every rank. Throws EnvironmentError as HostTurns.
[[nodiscard]] HostPrograms share_host_programs(const Communicator& comm, int threads = 0);

}  // namespace jforge
