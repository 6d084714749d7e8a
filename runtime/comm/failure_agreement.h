#pragma once

/// Agreement of the ranks on failures and stop requests, in every work → agree → commit step.

#include <exception>
#include <functional>
#include <string>

#include "runtime/comm/mpi_session.h"
#include "runtime/error.h"

namespace jforge {

struct FailureText {
  ExitCode code = ExitCode::internal;
  std::string message;
};
/// Returns an Error's own code and text. Exhausted memory and std::system_error (also
/// std::filesystem's) count as environment, anything else as a bug.
[[nodiscard]] FailureText describe_failure(const std::exception& error);

/// Collective. Runs `work`. If it throws on any rank, every rank throws an Error with the worst
/// code and the message of the lowest failing rank, prefixed by "rank R (HOST): ". A rank's own
/// exception is nested, and with several ranks logged at once, because the job may end before the
/// error has travelled. Otherwise returns on all ranks whether any `stop_requested` was set. An
/// error with Error::cut_off is thrown at once and only here: the other ranks may never agree.
[[nodiscard]] bool agree(const Communicator& comm, bool stop_requested,
                         const std::function<void()>& work);

/// agree() without stop requests.
void together(const Communicator& comm, const std::function<void()>& work);

}  // namespace jforge
