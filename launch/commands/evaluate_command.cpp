#include <fmt/format.h>

#include "launch/commands/commands.h"
#include "launch/commands/evaluation_session.h"
#include "launch/commands/run_directory.h"
#include "results/report/report.h"
#include "runtime/comm/failure_agreement.h"

namespace jforge {

void apply(const EvaluateOptions& options, EvaluateConfig& config) {
  if (!options.tasks.empty()) {
    config.tasks = options.tasks;
  }
  if (!options.methods.empty()) {
    config.methods = options.methods;
  }
  if (!options.data.empty()) {
    config.data = options.data;
  }
  if (options.max_new_tokens) {
    config.max_new_tokens = options.max_new_tokens;
  }
  if (options.limit) {
    config.limit = options.limit;
  }
  config.batch_prompts = options.batch_prompts.value_or(config.batch_prompts);
  config.prompt_style = options.prompt_style.value_or(config.prompt_style);
}

ExitCode evaluate_command(const EvaluateOptions& options, const MpiSession& session) {
  EvaluationSession evaluation(
      session, {options.config, options.overrides, options.model, options.out, options.name,
                "results/runs/evaluation", "evaluation"});
  EvaluateConfig& config = evaluation.config().evaluate;
  apply(options, config);
  if (config.tasks.empty()) {
    throw ConfigError("no task given: use --tasks or [evaluate] tasks");
  }
  config.validate();
  const bool finished =
      evaluation.load_model() &&
      evaluate_model(config, evaluation.model(), evaluation.context(), evaluation.directory());
  return evaluation.finish(finished, {});
}

}  // namespace jforge
