#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Collective. Returns this rank's index on its host, which selects its device.
[[nodiscard]] int local_rank(const Communicator& comm);
/// Collective. Returns the number of ranks on this host, which share its resources.
[[nodiscard]] int ranks_on_host(const Communicator& comm);
/// Collective. Returns how many ranks, this one included, name the same thing, such as a device.
[[nodiscard]] int ranks_that_name(const Communicator& comm, const std::string& thing);
/// Collective. Returns all that affects a rank's speed but the operands: "2 ranks on a host, AMD
/// EPYC …, threads: 1", or the device's name for the threads.
[[nodiscard]] std::string kind_of_rank(const Communicator& comm, Device device, int threads);
/// Collective of at least two ranks: sends to the next one of a ring, receives as many bytes from
/// the one before.
void pass_to_next(const Communicator& comm, std::span<const std::byte> sent,
                  std::span<std::byte> received);

}  // namespace jforge
