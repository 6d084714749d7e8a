#include <fmt/format.h>

#include "launch/commands/commands.h"
#include "launch/commands/evaluation_session.h"
#include "runtime/error.h"
#include "workers/evaluate/sweep.h"

namespace jforge {

ExitCode sweep_command(const SweepOptions& options, const MpiSession& session) {
  EvaluationSession evaluation(session, {options.config, options.overrides, options.model,
                                         options.out, options.name, "results/runs/sweep", "sweep"});
  const SweepConfig& sweep = evaluation.config().sweep;
  EvaluateConfig& config = evaluation.config().evaluate;
  if (config.tasks.empty()) {
    throw ConfigError("no task given: set evaluate.tasks");
  }
  config.validate();
  std::vector<DecodingMethod> methods =
      sweep_methods(sweep, config.decoding, evaluation.config().run.seed);
  for (DecodingMethod& method : methods) {
    method.samples_per_problem = config.samples_per_problem;
  }
  const bool finished =
      evaluation.load_model() && evaluate_methods(config, std::move(methods), evaluation.model(),
                                                  evaluation.context(), evaluation.directory());
  return evaluation.finish(finished, [&] {
    write_sweep(sweep, config.tasks, evaluation.model().name, evaluation.directory());
  });
}

}  // namespace jforge
