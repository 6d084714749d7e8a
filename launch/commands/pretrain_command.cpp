#include <fmt/format.h>

#include "checkpoints/hf_model.h"
#include "coordinator/control_plane.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "launch/commands/commands.h"
#include "launch/commands/progress_display.h"
#include "launch/commands/run_directory.h"
#include "launch/config/job_fields.h"
#include "model/transformer/parameter_table.h"
#include "runtime/comm/local_rank.h"
#include "runtime/console.h"
#include "runtime/log.h"
#include "workers/job_kernels.h"
#include "workers/pretrain_worker.h"

namespace jforge {

namespace {

std::string describe_pretraining(const PretrainConfig& config, int ranks) {
  const TransformerConfig model =
      new_model_config(config.pretrain, BytePairTokenizer::load(config.pretrain.tokenizer));
  const ParameterTable table(model, ranks);
  const auto parameters = static_cast<double>(table.flat_size());
  return fmt::format(
      "model: {} parameters\nranks: {}\nsteps: {} of {} samples\nweights, gradients and optimizer: "
      "{:.1f} MB per "
      "rank\ncheckpoint: {:.1f} MB\n",
      table.parameter_count(), ranks, config.pretrain.steps, config.train.batch_samples,
      parameters * (8 + 8.0 / ranks) / 1e6, 12 * parameters / 1e6);
}

ExitCode carry_out(const Communicator& comm, PhaseClock& clock, const PretrainConfig& config,
                   const JobOptions& options, const Identity& identity, RunDirectory& directory) {
  const std::unique_ptr<KernelSet> kernels = make_job_kernels(comm, config.pretrain.device);
  directory.set_device(describe_device(kernels->device(), local_rank(comm)));
  directory.set_status("running", "pretrain");
  ProgressDisplay display([&](const PhaseProgress& progress) { directory.set_progress(progress); });
  display.begin("pretrain");
  const auto on_step = [&](const StepMetrics& metrics) {
    directory.log_step(0, metrics);
    if (comm.rank() == 0) {
      display.step(metrics, config.pretrain.steps);
    }
  };
  const bool finished = pretrain(config, {comm, *kernels, clock, on_step}, identity,
                                 parse_resume_choice(options.resume),
                                 {options.accept_changes, directory.accepted_changes()});
  display.end();
  directory.set_status(finished ? "finished" : "interrupted", "pretrain");
  if (!finished) {
    spdlog::warn("stopped; everything committed is safe, run the same command again to go on");
    return ExitCode::interrupted;
  }
  if (comm.rank() == 0) {
    const ParameterTable table(read_hf_config(config.pretrain.output), 1);
    tell(stdout, fmt::format("{}: {} parameters\n", config.pretrain.output.string(),
                             table.parameter_count()));
  }
  return ExitCode::ok;
}

}  // namespace

ExitCode pretrain_command(const JobOptions& options, const MpiSession& session) {
  Communicator comm = session.world().duplicate();
  PretrainConfig config;
  load_configuration(comm, options.config, [&](const std::string& text) {
    config = read_pretrain_config(text, options.config.string(), options.overrides);
    config.validate();
  });
  ExitCode code = ExitCode::ok;
  if (options.dry_run) {
    if (comm.rank() == 0) {
      fmt::print("{}", describe_pretraining(config, comm.size()));
    }
  } else {
    PhaseClock& clock = session.clock();
    ControlPlane control(comm, clock,
                         {.heartbeat_limit_seconds = config.run.heartbeat_limit_seconds});
    clock.set_deadline(config.run.hang_limit_seconds);
    clock.enter("open the run directory");
    Identity identity = identity_values(pretrain_fields(config));
    identify_pretraining(comm, config.pretrain, identity);
    RunDirectory directory(comm, {config.run.directory, write_toml(pretrain_fields(config)),
                                  identity, options.accept_changes, options.resume == "never"});
    try {
      code = carry_out(comm, clock, config, options, identity, directory);
    } catch (const std::exception& error) {
      directory.set_failed(error);
      throw;
    }
    clock.enter("wait for the other ranks");
    comm.barrier();
    clock.enter("close", config.run.heartbeat_limit_seconds);
    control.close(comm);
  }
  comm.close();
  return code;
}

}  // namespace jforge
