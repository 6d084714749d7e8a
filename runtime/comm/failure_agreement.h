#pragma once

/// "Did any rank fail, was a stop asked for?": the agree half of every work → agree → commit step.

#include <functional>
#include <string>

#include "runtime/comm/mpi_session.h"
#include "runtime/error.h"

namespace jforge {

/// Collective over `comm`. Runs `work` on this rank; if it throws on any rank, every rank throws an
/// Error with the worst code and the message of the lowest failing rank, prefixed by "rank R
/// (HOST): ". A rank's own exception is kept. Returns true when any rank's `stop_requested` was
/// set: all ranks see the same answer, at the same boundary.
[[nodiscard]] bool agree(const Communicator& comm, bool stop_requested,
                         const std::function<void()>& work);

}  // namespace jforge
