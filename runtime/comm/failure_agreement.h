#pragma once

/// "Did any rank fail, was a stop asked for?": the agree half of every work → agree → commit step.

#include <exception>
#include <functional>
#include <string>

#include "runtime/comm/mpi_session.h"
#include "runtime/error.h"

namespace jforge {

/// What is said of a failure, and the exit code it gives.
struct FailureText {
  ExitCode code = ExitCode::internal;
  std::string message;
};
/// Of an Error its own; exhausted memory and what the system refuses (std::system_error, so also
/// std::filesystem's) are the environment's fault; anything else is a bug.
[[nodiscard]] FailureText describe_failure(const std::exception& error);

/// Collective over `comm`. Runs `work` on this rank; if it throws on any rank, every rank throws an
/// Error with the worst code and the message of the lowest failing rank, prefixed by "rank R
/// (HOST): ". A rank's own exception is kept, and with several ranks logged at once: the job may
/// end before the error has travelled. Returns true when any rank's `stop_requested` was set: all
/// ranks see the same answer, at the same boundary. An error that has cut this rank off from
/// others (Error::cut_off) is thrown here alone and at once: they may never come to agree.
[[nodiscard]] bool agree(const Communicator& comm, bool stop_requested,
                         const std::function<void()>& work);

/// agree() for work that no stop request touches.
void together(const Communicator& comm, const std::function<void()>& work);

}  // namespace jforge
