#pragma once

/// What the job does next. Up to the export it is decided from durable facts alone: a restarted job
/// asks the same question and gets the same answer, so no round is repeated or skipped (fault 28).
/// Evaluations and the report are asked for once by every process; the evaluation itself skips what
/// is current. Pure logic.

#include <cstdint>
#include <string>
#include <vector>

#include "workers/protocol/command.h"

namespace jforge {

/// What is durable in the run directory, and what this process has done with the finished model.
struct JobFacts {
  std::int32_t rounds = 0;  ///< Configured.
  bool prompts_imported = false;
  std::int32_t rounds_trained = 0;  ///< Rounds whose final checkpoint is durable.
  std::int32_t round_generated =
      0;  ///< Highest round ≤ rounds_trained + 1 whose prompts are all committed.
  bool exported = false;
  std::vector<std::string> models_to_evaluate;  ///< In order; empty when evaluation is off.
  std::vector<std::string> models_evaluated;    ///< By this process.
  bool reported = false;                        ///< Likewise.
};

/// The order of phases: import, (generate r, train r) for each round, export, evaluate each model,
/// report, finish.
[[nodiscard]] Command next_command(const JobFacts& facts);

}  // namespace jforge
