#include "runtime/comm/failure_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/comm/transport_internal.h"
#include "runtime/log.h"

namespace jforge {

using detail::InCollective;
using detail::Operation;

namespace {
struct RankOutcome {
  std::int32_t code = 0;
  std::int32_t stop = 0;
};

struct LocalFailure {
  ExitCode code = ExitCode::ok;
  std::string message;
  std::exception_ptr exception;
  bool cut_off = false;
};

LocalFailure attempt(const std::function<void()>& work) {
  try {
    if (work) {
      work();
    }
    return {};
  } catch (const std::exception& error) {
    FailureText text = describe_failure(error);
    const auto* const known = dynamic_cast<const Error*>(&error);
    return {text.code, std::move(text.message), std::current_exception(),
            known != nullptr && known->cut_off()};
  } catch (...) {
    return {ExitCode::internal, "an exception of unknown type", std::current_exception()};
  }
}

/// An interruption must not hide a failure; otherwise the higher exit code is worse.
int severity(std::int32_t code) {
  return code == static_cast<int>(ExitCode::interrupted) ? 1 : code;
}

/// Nests this rank's own exception, if any (std::rethrow_if_nested).
template <class SomeError>
[[noreturn]] void throw_keeping(const std::string& message, const std::exception_ptr& own) {
  SomeError error(message);
  error.set_on_all_ranks();
  if (own == nullptr) {
    throw error;
  }
  try {
    std::rethrow_exception(own);
  } catch (...) {
    std::throw_with_nested(error);
  }
}

[[noreturn]] void throw_typed(ExitCode code, const std::string& message,
                              const std::exception_ptr& own) {
  switch (code) {
    case ExitCode::usage:
      throw_keeping<ConfigError>(message, own);
    case ExitCode::input_data:
      throw_keeping<DataError>(message, own);
    case ExitCode::environment:
      throw_keeping<EnvironmentError>(message, own);
    case ExitCode::numerical:
      throw_keeping<NumericalError>(message, own);
    case ExitCode::interrupted:
      throw_keeping<Interrupted>(message, own);
    case ExitCode::ok:
    case ExitCode::internal:
      break;
  }
  throw_keeping<InternalError>(message, own);
}
}  // namespace

FailureText describe_failure(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error); known != nullptr) {
    return {known->code() == ExitCode::ok ? ExitCode::internal : known->code(), known->what()};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {ExitCode::environment, "out of memory"};
  }
  if (dynamic_cast<const std::system_error*>(&error) != nullptr) {
    return {ExitCode::environment, error.what()};
  }
  return {ExitCode::internal, error.what()};
}

bool agree(const Communicator& comm, bool stop_requested, const std::function<void()>& work) {
  const LocalFailure failure = attempt(work);
  if (failure.cut_off && comm.size() > 1) {
    log_error("failed, ends the job: {}", failure.message);
    std::rethrow_exception(failure.exception);
  }
  // A lone rank reports in main. With several, another rank's abort may come first.
  if (comm.size() > 1 && failure.exception != nullptr && failure.code != ExitCode::interrupted) {
    log_error("failed, telling the other ranks: {}", failure.message);
  }
  const InCollective in(comm, Operation::agree, 0);
  const RankOutcome mine{static_cast<std::int32_t>(failure.code), stop_requested ? 1 : 0};
  // Kept between calls: training agrees twice a step and must not allocate.
  thread_local std::vector<RankOutcome> all;
  all.resize(static_cast<std::size_t>(comm.size()));
  detail::all_gather_values<RankOutcome>(comm.handle(), mine, all);

  const auto worst =
      std::max_element(all.begin(), all.end(), [](const RankOutcome& a, const RankOutcome& b) {
        return severity(a.code) < severity(b.code);
      });
  if (worst->code == 0) {
    return std::any_of(all.begin(), all.end(),
                       [](const RankOutcome& verdict) { return verdict.stop != 0; });
  }
  const bool only_interrupted = worst->code == static_cast<int>(ExitCode::interrupted);
  const auto speaker = std::find_if(all.begin(), all.end(), [&](const RankOutcome& verdict) {
    return verdict.code != 0 &&
           (only_interrupted || verdict.code != static_cast<int>(ExitCode::interrupted));
  });
  const auto rank = static_cast<Rank>(speaker - all.begin());
  std::string message;
  if (comm.rank() == rank) {
    message = fmt::format("rank {} ({}): {}", rank, host_name(), failure.message);
  }
  message = broadcast_text(comm, message, rank);
  throw_typed(static_cast<ExitCode>(worst->code), message, failure.exception);
}

void together(const Communicator& comm, const std::function<void()>& work) {
  static_cast<void>(agree(comm, false, work));
}

}  // namespace jforge
