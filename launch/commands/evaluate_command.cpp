#include <fmt/format.h>

#include "launch/commands/commands.h"
#include "launch/commands/run_directory.h"
#include "launch/config/job_fields.h"
#include "results/report/report.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/durable_file.h"
#include "runtime/log.h"
#include "workers/evaluate/evaluator.h"
#include "workers/model_state.h"

namespace jforge {

namespace {

EvaluateConfig merged_config(const EvaluateOptions& options, const JobConfig& job) {
  EvaluateConfig config = job.evaluate;
  if (!options.tasks.empty()) {
    config.tasks = options.tasks;
  }
  if (!options.methods.empty()) {
    config.methods = options.methods;
  }
  if (!options.data.empty()) {
    config.data = options.data;
  }
  config.block_size = options.block_size.value_or(config.block_size);
  if (options.limit) {
    config.limit = options.limit;
  }
  if (config.tasks.empty()) {
    throw ConfigError("no task given: use --tasks or [evaluate] tasks");
  }
  config.validate();
  return config;
}

}  // namespace

ExitCode evaluate_command(const EvaluateOptions& options, const MpiSession& session) {
  Communicator comm = session.world().duplicate();
  const std::string text =
      options.config.empty() ? std::string() : read_and_broadcast(comm, options.config);
  const JobConfig job = read_job_config(text, options.config.string(), options.overrides);
  const EvaluateConfig config = merged_config(options, job);
  const std::filesystem::path model_directory =
      options.model.empty() ? job.model.source : options.model;
  if (model_directory.empty()) {
    throw ConfigError("no model given: use --model or [model] source");
  }
  const std::filesystem::path out =
      options.out.empty() ? std::filesystem::path("results/runs/evaluation") : options.out;

  PhaseClock clock;
  clock.enter("evaluate", job.run.hang_limit_seconds);
  const HangWatchdog watchdog(clock);
  const std::unique_ptr<KernelSet> kernels = make_cpu_kernel_set();
  MemoryAccount account("evaluation");
  std::unique_ptr<ModelState> model;
  const bool stop = agree(comm, false, [&] {
    model = std::make_unique<ModelState>(model_directory, 1, account);
    model->load_hf(model_directory);
    if (comm.rank() == 0) {
      make_directory(out / "evaluation");
    }
  });
  const std::string name =
      std::filesystem::absolute(model_directory).lexically_normal().filename().string();
  const bool finished = !stop && evaluate_model(config,
                                                {name.empty() ? "model" : name, model->config(),
                                                 model->table(), model->weights(), model_directory},
                                                {comm, *kernels, clock, job.run.seed,
                                                 job.prompts.chat_template == "chatml"},
                                                out / "evaluation");
  const bool reported = agree(comm, false, [&] {
    if (finished && comm.rank() == 0) {
      fmt::print("{}\nReport: {}\n", write_report(out), (out / "report.md").string());
    }
  });
  (void)reported;
  comm.close();
  return finished ? ExitCode::ok : ExitCode::interrupted;
}

}  // namespace jforge
