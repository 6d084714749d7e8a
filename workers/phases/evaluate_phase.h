#pragma once

/// The evaluation of a job's models.

#include <string>

#include "workers/job_config.h"
#include "workers/phases/services.h"
#include "workers/run_layout.h"

namespace jforge {

/// Collective. Evaluates `model`, "base" or "final", which is read from its files. Returns false if
/// a stop was requested.
[[nodiscard]] bool run_evaluate_phase(const JobConfig& config, const WorkerServices& services,
                                      const RunLayout& layout, const std::string& model);

}  // namespace jforge
