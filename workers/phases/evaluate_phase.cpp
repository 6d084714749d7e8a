#include "workers/phases/evaluate_phase.h"

#include <memory>

#include "checkpoints/hf_model.h"
#include "workers/evaluate/evaluator.h"

namespace jforge {

bool run_evaluate_phase(const JobConfig& config, const WorkerServices& services,
                        const RunLayout& layout, const std::string& model) {
  services.clock.enter("evaluate " + model);
  const std::filesystem::path directory = model == "base" ? config.model.source : layout.model();
  EvaluateConfig evaluate = config.evaluate;
  if (model == "base") {  // Its text is what the drafter's methods give.
    std::erase_if(evaluate.methods, [&](const std::string& name) {
      return make_decoding_method(name, evaluate.decoding, 0).needs_drafter();
    });
  }
  MemoryAccount account("evaluation");
  bool finished = false;
  {
    const std::unique_ptr<HfModel> files = open_hf_model(services.comm, directory);
    const auto read = [&](const ParameterEntry& entry) { return files->tensors.read(entry); };
    finished = evaluate_model(evaluate,
                              {model, files->config, files->table, read, directory,
                               config.model.decode_weights, files->drafter.get()},
                              {.comm = services.comm,
                               .kernels = services.kernels,
                               .clock = services.clock,
                               .account = account,
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
