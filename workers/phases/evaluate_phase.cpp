#include "workers/phases/evaluate_phase.h"

#include <optional>

#include "runtime/comm/failure_agreement.h"
#include "workers/evaluate/evaluator.h"
#include "workers/model_state.h"

namespace jforge {

bool run_evaluate_phase(const JobConfig& config, const WorkerServices& services,
                        const RunLayout& layout, const std::string& model) {
  services.clock.enter("evaluate " + model);
  const std::filesystem::path directory = model == "base" ? config.model.source : layout.model();
  MemoryAccount account("evaluation");
  bool finished = false;
  {
    std::optional<ModelState> state;
    together(services.comm, [&] { state.emplace(directory, 1, account); });
    state->load_hf(services.comm, directory);
    finished = evaluate_model(config.evaluate,
                              {model, state->config(), state->table(), state->weights(), directory,
                               config.model.decode_weights},
                              {.comm = services.comm,
                               .kernels = services.kernels,
                               .clock = services.clock,
                               .seed = config.run.seed,
                               .chat_template = config.prompts.template_options(),
                               .on_progress = services.on_evaluation,
                               .records_tuning = model != "base"},
                              layout.evaluation());
  }
  services.end_phase(account);
  return finished;
}

}  // namespace jforge
