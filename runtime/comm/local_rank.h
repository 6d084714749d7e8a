#pragma once

#include "runtime/comm/mpi_session.h"

namespace jforge {

/// Collective. This rank's place among the ranks of its host, from 0: what chooses its device.
[[nodiscard]] int local_rank(const Communicator& comm);
/// Collective. How many ranks its host has: what they share is divided by it.
[[nodiscard]] int ranks_on_host(const Communicator& comm);

}  // namespace jforge
