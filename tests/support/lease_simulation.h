#pragma once

/// Simulates a generating phase with the production LeaseQueue. A worker decodes several sequences
/// at once, asks for a lease when the last prompt of one starts, and commits a lease with its last
/// answer. For tests of the queue.

#include <cstdint>
#include <vector>

#include "coordinator/lease_queue.h"

namespace jforge::test {

struct SimulatedPrompt {
  std::int64_t prompt_tokens = 0;  ///< known to the queue
  double answer_seconds = 0;       ///< of one sequence at full speed; unknown to the queue
};

/// Returns log-normal lengths: prompts of median 50 tokens (σ 0.6), answers of median 200 (σ 0.75,
/// as wide as MATH's solutions) cut at 2,048, at `tokens_per_second`. Independent, so that the
/// queue cannot predict.
[[nodiscard]] std::vector<SimulatedPrompt> simulated_prompts(std::int64_t count,
                                                             double tokens_per_second,
                                                             std::uint64_t seed);

struct SimulatedJob {
  int ranks = 1;
  int sequences = 1;             ///< decoded at once by a rank
  std::int64_t most = 256;       ///< prompts in a lease
  double commit_seconds = 0.02;  ///< blocks a sequence when a lease ends
  double straggler_share = 0;    ///< share of slow ranks …
  double straggler_factor = 3;   ///< … and their slowdown
  /// A death ends the job, which restarts with the committed leases.
  double deaths_per_hour = 0;
  double restart_seconds = 120;  ///< to notice, relaunch and load
  std::uint64_t seed = 1;
};

struct SimulatedRun {
  double seconds = 0;  ///< until everything is committed
  /// Lower bound of any schedule: all work over all speeds, or the longest answer.
  double bound_seconds = 0;
  std::int64_t leases = 0;      ///< given out, including repeats
  double repeated_seconds = 0;  ///< sequence time lost by deaths or committed by another attempt
  double work_seconds = 0;      ///< sequence time of all answers once
  std::int64_t most_in_flight = 0;  ///< maximum of leases out at once
  std::int64_t repeats = 0;         ///< leases given out again
  std::int64_t deaths = 0;
  double queue_seconds = 0;  ///< processor time in the queue's functions …
  std::int64_t queue_calls = 0;
  /// Commits of each prompt.
  std::vector<std::int32_t> commits;
};

[[nodiscard]] SimulatedRun simulate(const SimulatedJob& job,
                                    const std::vector<SimulatedPrompt>& prompts);

}  // namespace jforge::test
