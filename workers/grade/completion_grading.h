#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "workers/grade/completion_set.h"
#include "workers/grade/verdict_store.h"

namespace jforge {

/// Found by rank 0.
struct GradingPlan {
  std::int64_t attempt = 1;        ///< Attempt of this call's parts.
  std::vector<std::int64_t> open;  ///< Indices of completions without a verdict, ascending.
};

struct GradingContext {
  const Communicator& comm;
  PhaseClock& clock;
  std::optional<std::int32_t> jobs;  ///< Programs at a time on this rank; default: its cores.
};

/// Collective. `done`, verdicts of earlier calls, is read on rank 0 only.
[[nodiscard]] GradingPlan share_plan(const Communicator& comm, const CompletionSet& set,
                                     const VerdictStore& store,
                                     const std::vector<VerdictRecord>& done);

/// Collective. Grades the open completions; faster ranks take more. Appends verdicts to this rank's
/// part in `store` and to `lines`, because rank 0 may not see files of other machines yet. Returns
/// false if any rank was asked to stop; finished verdicts stay in the parts. Throws
/// EnvironmentError if a part cannot be written or a machine cannot run programs, and errors of
/// Task::grade.
[[nodiscard]] bool grade_completions(const CompletionSet& set, const VerdictStore& store,
                                     const GradingPlan& plan, const GradingContext& context,
                                     std::string& lines);

}  // namespace jforge
