#pragma once

/// Distributes completions over the ranks, grades them and stores each verdict at once.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "workers/grade/completion_set.h"
#include "workers/grade/verdict_store.h"

namespace jforge {

/// Found by rank 0, used by all ranks.
struct GradingPlan {
  std::int64_t attempt = 1;        ///< Attempt number of this call's part files.
  std::vector<std::int64_t> open;  ///< Completions without a verdict, ascending.
};

struct GradingContext {
  const Communicator& comm;
  PhaseClock& clock;
  std::optional<std::int32_t> jobs;  ///< Programs at a time on this rank; default: its cores.
};

/// Collective. `done`: verdicts of earlier calls; read on rank 0 only.
[[nodiscard]] GradingPlan share_plan(const Communicator& comm, const CompletionSet& set,
                                     const VerdictStore& store,
                                     const std::vector<VerdictRecord>& done);

/// Collective. Grades the open completions; faster ranks take more. Appends every verdict to this
/// rank's part in `store` and to `lines`, which rank 0 collects because files of another machine
/// may not be visible to it yet. Returns false if any rank was asked to stop; finished verdicts
/// stay in the parts and interrupted programs are graded by a later call. Throws EnvironmentError
/// if a part cannot be written or a machine cannot run programs, and errors of Task::grade.
[[nodiscard]] bool grade_completions(const CompletionSet& set, const VerdictStore& store,
                                     const GradingPlan& plan, const GradingContext& context,
                                     std::string& lines);

}  // namespace jforge
