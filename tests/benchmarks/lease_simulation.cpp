/// Runs the lease queue under 4,096 simulated workers and 450,000 prompts, with slow workers and
/// deaths. Prints how near to the optimum a generating phase ends, for several lease lengths. Only
/// the queue itself runs in real time.
///
///   lease_simulation [RANKS [PROMPTS]]

#include "tests/support/lease_simulation.h"

#include <fmt/format.h>

#include <cstdlib>

namespace {

using namespace jforge;
using namespace jforge::test;

void row(const char* name, const SimulatedJob& job, const std::vector<SimulatedPrompt>& prompts) {
  const SimulatedRun run = simulate(job, prompts);
  fmt::print("| {} | {} | {:.0f} | {:.3f} | {} | {} | {:.2f} % | {} | {:.0f} |\n", name, job.most,
             run.seconds, run.seconds / run.bound_seconds, run.leases, run.repeats,
             100 * run.repeated_seconds / run.work_seconds, run.deaths,
             static_cast<double>(run.queue_calls) / run.queue_seconds);
}

}  // namespace

int main(int argc, char** argv) {
  SimulatedJob job;
  job.ranks = argc > 1 ? std::atoi(argv[1]) : 4096;
  const std::int64_t count = argc > 2 ? std::atoll(argv[2]) : 450'000;
  constexpr double kTokensPerSecond = 40;
  const auto prompts = simulated_prompts(count, kTokensPerSecond, 1);
  fmt::print("{} workers, {} prompts, {} tokens/s each\n\n", job.ranks, count, kTokensPerSecond);
  fmt::print(
      "| case | prompts a lease, at most | s | over the bound | leases | again | work in vain | "
      "deaths | "
      "queue calls/s |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const std::int64_t most : {1, 8, 64, 256}) {
    job.most = most;
    row("no faults", job, prompts);
  }
  job.straggler_share = 0.01;
  row("1 % three times as slow", job, prompts);
  job.straggler_share = 0;
  for (const double deaths : {1.0, 4.0, 16.0}) {
    job.deaths_per_hour = deaths;
    for (const std::int64_t most : {1, 4, 16, 256}) {
      job.most = most;
      row(fmt::format("{} deaths an hour", deaths).c_str(), job, prompts);
    }
  }
  return 0;
}
