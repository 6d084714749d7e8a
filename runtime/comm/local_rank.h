#pragma once

#include <string>

#include "runtime/comm/mpi_session.h"

namespace jforge {

/// Collective. This rank's place among the ranks of its host, from 0: what chooses its device.
[[nodiscard]] int local_rank(const Communicator& comm);
/// Collective. How many ranks its host has: what they share is divided by it.
[[nodiscard]] int ranks_on_host(const Communicator& comm);
/// Collective. How many ranks, this one among them, name the same thing: a device that they share.
[[nodiscard]] int ranks_that_name(const Communicator& comm, const std::string& thing);

}  // namespace jforge
