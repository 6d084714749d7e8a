#include <fmt/format.h>

#include "launch/commands/commands.h"
#include "launch/commands/evaluation_session.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/stop_signal.h"
#include "workers/evaluate/roofline_profile.h"
#include "workers/evaluate/sweep.h"

namespace jforge {

namespace {

// Rank 0 measures alone. Throws Interrupted if a stop was requested.
nlohmann::ordered_json measure_roofline(EvaluationSession& evaluation) {
  const EvaluationContext context = evaluation.context();
  context.clock.enter("roofline");
  std::int64_t passes = 0;
  const std::vector<RooflinePoint> points =
      profile_roofline(evaluation.model(), context.kernels, {.seed = context.seed}, [&] {
        context.clock.progress(++passes);
        fault_point("roofline");
        return stop_requested();
      });
  if (points.empty()) {
    throw Interrupted(
        "stopped on request while the roofline was measured; every finished sample is safe, run "
        "the same command again");
  }
  return to_json(points);
}

}  // namespace

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
    write_sweep(sweep, config.tasks, evaluation.model().name, evaluation.directory(),
                roofline_machine(evaluation.context().kernels),
                options.roofline ? measure_roofline(evaluation) : nlohmann::ordered_json());
  });
}

}  // namespace jforge
