#include <fmt/format.h>

#include <utility>
#include <vector>

#include "launch/commands/commands.h"
#include "launch/commands/evaluation_session.h"
#include "runtime/error.h"
#include "workers/evaluate/sweep.h"

namespace jforge {

ExitCode sweep_command(const SweepOptions& options, const MpiSession& session) {
  EvaluationSession evaluation(session, {options.config, options.overrides, options.model,
                                         options.out, options.name, "results/runs/sweep", "sweep",
                                         /*shows_tables=*/true, options.part});
  const SweepConfig& sweep = evaluation.config().sweep;
  EvaluateConfig& config = evaluation.config().evaluate;
  if (config.tasks.empty()) {
    throw ConfigError("no task given: set evaluate.tasks");
  }
  config.validate();
  std::vector<DecodingMethod> methods =
      sweep_methods(sweep, config.decoding, evaluation.config().run.seed);
  const int part = options.part.first;
  const int parts = options.part.second;
  if (part < 1 || part > parts || std::cmp_greater(parts, methods.size())) {
    throw ConfigError(
        fmt::format("--part {}/{}: give K/N with K from 1 to N and N up to {}, the combinations "
                    "and ar",
                    part, parts, methods.size()));
  }
  std::vector<DecodingMethod> ours;
  for (auto i = static_cast<std::size_t>(part - 1); i < methods.size();
       i += static_cast<std::size_t>(parts)) {
    methods[i].samples_per_problem = config.samples_per_problem;
    ours.push_back(std::move(methods[i]));
  }
  const bool finished =
      evaluation.load_model() && evaluate_methods(config, std::move(ours), evaluation.model(),
                                                  evaluation.context(), evaluation.directory());
  return evaluation.finish(finished, [&] {
    write_sweep(sweep, config.tasks, evaluation.model().name, evaluation.directory());
  });
}

}  // namespace jforge
