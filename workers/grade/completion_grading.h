#pragma once

/// Completions leased over the ranks and graded there, each verdict kept as it comes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "workers/grade/completion_set.h"
#include "workers/grade/verdict_store.h"

namespace jforge {

/// What rank 0 has found and all ranks act on.
struct GradingPlan {
  std::int64_t attempt = 1;        ///< Number of this call's parts.
  std::vector<std::int64_t> open;  ///< Indices of the completions that have no verdict, ascending.
};

struct GradingContext {
  const Communicator& comm;
  PhaseClock& clock;
  std::optional<std::int32_t> jobs;  ///< Programs at a time on this rank; default: its cores.
};

/// Collective. Rank 0's `done` are the verdicts of earlier calls; the others' are not looked at.
[[nodiscard]] GradingPlan share_plan(const Communicator& comm, const CompletionSet& set,
                                     const VerdictStore& store,
                                     const std::vector<VerdictRecord>& done);

/// Collective. Grades the open completions; who is quick takes more. Every verdict is appended to
/// this rank's part in `store`, and to `lines` for rank 0, since another machine's file may not be
/// visible there yet. False when a stop was requested on any rank: what is in the parts stays, and
/// programs that were running are graded by a later call. Throws EnvironmentError for a part that
/// cannot be written and for a machine that cannot run programs, and what Task::grade throws.
[[nodiscard]] bool grade_completions(const CompletionSet& set, const VerdictStore& store,
                                     const GradingPlan& plan, const GradingContext& context,
                                     std::string& lines);

}  // namespace jforge
