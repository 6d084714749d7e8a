#pragma once

/// Decides the job's next phase, up to the export from durable facts only, so that a restarted job
/// neither repeats nor skips a round (fault 28). Evaluation and report are requested once per
/// process. Pure logic.

#include <cstdint>
#include <string>
#include <vector>

#include "workers/protocol/command.h"

namespace jforge {

struct JobFacts {
  std::int32_t rounds = 0;  ///< Configured.
  bool prompts_imported = false;
  std::int32_t rounds_trained = 0;  ///< Rounds whose final checkpoint is durable.
  std::int32_t round_generated =
      0;  ///< Highest round ≤ rounds_trained + 1 with all prompts committed.
  bool exported = false;
  std::vector<std::string> models_to_evaluate;  ///< In order; empty if evaluation is off.
  std::vector<std::string> models_evaluated;    ///< By this process.
  bool reported = false;                        ///< By this process.
};

/// Order: import, generate and train each round, export, evaluate each model, report, finish.
[[nodiscard]] Command next_command(const JobFacts& facts);

}  // namespace jforge
