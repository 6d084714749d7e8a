#pragma once

/// A generating phase with the production LeaseQueue and simulated workers: each decodes some
/// sequences at once, asks for the next lease when the last prompt of one starts, and commits a
/// lease when its last answer is there. For tests of the queue's promises and for figures of what
/// leases cost (tests/benchmarks/lease_simulation.cpp).

#include <cstdint>
#include <vector>

#include "coordinator/lease_queue.h"

namespace jforge::test {

struct SimulatedPrompt {
  std::int64_t prompt_tokens = 0;  ///< Known to the queue.
  double answer_seconds = 0;       ///< Of one sequence on a worker of full speed; not known to it.
};

/// Log-normal lengths: prompts of median 50 tokens (σ 0.6), answers of median 200 (σ 0.75, as wide
/// as MATH's solutions) cut at 2,048, at `tokens_per_second`. Independent: the queue learns
/// nothing.
[[nodiscard]] std::vector<SimulatedPrompt> simulated_prompts(std::int64_t count,
                                                             double tokens_per_second,
                                                             std::uint64_t seed);

struct SimulatedJob {
  int ranks = 1;
  int sequences = 1;             ///< Decoded at once by a rank.
  std::int64_t most = 256;       ///< Prompts in a lease.
  double commit_seconds = 0.02;  ///< A sequence's place is taken for so long when a lease ends.
  double straggler_share = 0;    ///< Of the ranks …
  double straggler_factor = 3;   ///< … take so many times as long.
  /// Ranks that die; each ends the whole job, which starts again with what is committed.
  double deaths_per_hour = 0;
  double restart_seconds = 120;  ///< Until it is noticed, relaunched and loaded.
  std::uint64_t seed = 1;
};

struct SimulatedRun {
  double seconds = 0;  ///< Until everything is committed.
  /// No schedule takes less: all work over all speeds, or the longest answer.
  double bound_seconds = 0;
  std::int64_t leases = 0;  ///< Given out, attempts counted.
  double repeated_seconds =
      0;  ///< Of sequences, spent on what another attempt committed or a death lost.
  double work_seconds = 0;          ///< Of sequences, all answers once.
  std::int64_t most_in_flight = 0;  ///< Leases out at the same time, at most.
  std::int64_t repeats = 0;         ///< Leases given out again.
  std::int64_t deaths = 0;
  double queue_seconds = 0;  ///< Of this processor, in the queue's functions …
  std::int64_t queue_calls = 0;
  /// How often each prompt was committed.
  std::vector<std::int32_t> commits;
};

[[nodiscard]] SimulatedRun simulate(const SimulatedJob& job,
                                    const std::vector<SimulatedPrompt>& prompts);

}  // namespace jforge::test
