// jforge pretrain and jforge finetune: one command with two configurations.

#include <fmt/format.h>

#include <algorithm>

#include "checkpoints/hf_model.h"
#include "coordinator/control_plane.h"
#include "launch/commands/commands.h"
#include "launch/commands/job_plan.h"
#include "launch/commands/plan_time.h"
#include "launch/commands/progress_display.h"
#include "launch/commands/run_directory.h"
#include "launch/config/job_fields.h"
#include "model/transformer/parameter_table.h"
#include "results/report/report.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/local_rank.h"
#include "runtime/console.h"
#include "runtime/log.h"
#include "workers/conversation_training.h"
#include "workers/job_kernels.h"
#include "workers/run_layout.h"

namespace jforge {

namespace {

/// Samples of a step at their mean length, micro-batches of train.tokens_per_rank at most.
struct StepPlan {
  double mean_tokens = 0;  ///< Of a sample.
  std::int64_t longest = 0;
  std::int64_t rows = 0;  ///< The largest micro-batch.
  std::int64_t micro_batches = 0;
};

StepPlan plan_step(const ConversationTraining& training, const PreparedTraining& prepared,
                   int ranks) {
  StepPlan plan;
  for (const CausalSample& sample : prepared.samples) {
    const auto tokens = static_cast<std::int64_t>(sample.tokens.size());
    plan.mean_tokens += static_cast<double>(tokens);
    plan.longest = std::max(plan.longest, tokens);
  }
  plan.mean_tokens /= static_cast<double>(prepared.samples.size());
  const std::int64_t budget = training.train.tokens_per_rank;
  const std::int64_t samples = (training.train.batch_samples + ranks - 1) / ranks;
  plan.rows = std::min(budget, samples * plan.longest);
  const double all_rows = static_cast<double>(samples) * plan.mean_tokens;
  plan.micro_batches = static_cast<std::int64_t>(all_rows) / budget + 1;
  return plan;
}

MemoryPlan plan_memory(const ConversationTraining& training, const PreparedTraining& prepared,
                       int ranks, Device device) {
  const StepPlan step = plan_step(training, prepared, ranks);
  return plan_training(prepared.model, ParameterTable(prepared.model, ranks), training.train,
                       training.train.sharding(), device,
                       {.packed = step.rows, .micro_batches = step.micro_batches});
}

std::string describe(const ConversationTraining& training, const PreparedTraining& prepared,
                     int ranks, const MachineSpeed& speed) {
  const ParameterTable table(prepared.model, ranks);
  const StepPlan step = plan_step(training, prepared, ranks);
  const MemoryPlan plan = plan_memory(training, prepared, ranks, Device::cpu);
  RoundWork work;
  work.samples_trained = prepared.steps * training.train.batch_samples;
  work.prompt_tokens = step.mean_tokens;
  work.block_size = 1;
  work.batch_prompts = 1;
  work.recompute = training.train.activation_checkpointing;
  const auto megabytes = [](double bytes) { return fmt::format("{:.1f} MB", bytes / 1e6); };
  return fmt::format(
      "model: {} parameters\nranks: {}\nsamples: {}, of {:.0f} tokens on average, at most {}\n"
      "steps: {} of {} samples\nmemory per rank (ZeRO stage {}, {}): weights {}, gradients {}, "
      "optimizer {}, communication {}, activations of {} rows {}, copy for checkpoints {}; {} in "
      "all\na step of {} micro-batch{} sends from each rank {}\ncheckpoint: {}\n"
      "time, estimated: {}\n",
      table.parameter_count(), ranks, prepared.samples.size(), step.mean_tokens, step.longest,
      prepared.steps, training.train.batch_samples, training.train.optimizer.zero_stage,
      dtype_name(training.train.compute), megabytes(plan.state.weights),
      megabytes(plan.state.gradients), megabytes(plan.state.optimizer),
      megabytes(plan.state.communication), plan.rows, megabytes(plan.activations),
      megabytes(plan.snapshot), megabytes(plan.training()), plan.micro_batches,
      plan.micro_batches == 1 ? "" : "es", megabytes(plan.payload.total()),
      megabytes(12 * static_cast<double>(table.flat_size())),
      duration_text(estimate_round(prepared.model, work, speed, ranks).train));
}

/// Collective. Before anything is held.
void expect_memory(const ConversationTraining& training, const PreparedTraining& prepared,
                   Device device, const Communicator& comm) {
  const int ranks_here = ranks_on_host(comm);
  together(comm, [&] {
    const MemoryPlan plan = plan_memory(training, prepared, comm.size(), device);
    JobConfig config;  // What the messages name.
    config.train.tokens_per_rank = training.train.tokens_per_rank;
    expect_fits_here(plan, config, {.generation = false}, ranks_here);
  });
}

/// Collective. Every rank reads tokenizer and pairs.
PreparedTraining prepare_together(const Communicator& comm, const ConversationTraining& training) {
  PreparedTraining prepared;
  together(comm, [&] { prepared = prepare(training); });
  return prepared;
}

ExitCode dry_run(const ConversationTraining& training, const JobOptions& options,
                 const MpiSession& session) {
  const Communicator& comm = session.world();
  session.clock().enter("plan");
  const PreparedTraining prepared = prepare_together(comm, training);
  const auto kernels = make_job_kernels(comm, training.device, training.train.attention);
  MachineSpeed speed = measure_speed(*kernels, comm, training.train.compute,
                                     RunLayout(training.run.directory).peak_flops());
  const int ranks = options.planned_ranks.value_or(comm.size());
  speed.training_flops *= static_cast<double>(ranks) / comm.size();
  if (comm.rank() == 0) {
    fmt::print("{}", describe(training, prepared, ranks, speed));
  }
  return ExitCode::ok;
}

ExitCode carry_out(const Communicator& comm, PhaseClock& clock,
                   const ConversationTraining& training, const JobOptions& options,
                   const Identity& identity, RunDirectory& directory) {
  const std::unique_ptr<KernelSet> kernels =
      make_job_kernels(comm, training.device, training.train.attention);
  directory.set_device(describe_device(kernels->device(), local_rank(comm)));
  directory.set_status("running", training.phase);
  clock.enter("read the samples");
  PreparedTraining prepared = prepare_together(comm, training);
  expect_memory(training, prepared, kernels->device(), comm);
  ProgressDisplay display([&](const PhaseProgress& progress) { directory.set_progress(progress); });
  display.begin(training.phase);
  const auto on_step = [&, steps = prepared.steps](const StepMetrics& metrics) {
    directory.log_step(0, metrics);
    if (comm.rank() == 0) {
      display.step(metrics, steps);
    }
  };
  const bool finished = train_on_conversations(
      training, std::move(prepared), {comm, *kernels, clock, on_step}, identity,
      parse_resume_choice(options.resume), {options.accept_changes, directory.accepted_changes()});
  display.end();
  directory.set_status(finished ? "finished" : "interrupted", training.phase);
  if (!finished) {
    spdlog::warn("stopped; everything committed is safe, run the same command again to go on");
    return ExitCode::interrupted;
  }
  clock.enter("report");
  together(comm, [&] {
    if (comm.rank() == 0) {
      static_cast<void>(write_report(training.run.directory));
      const ParameterTable table(read_hf_config(training.output), 1);
      tell(stdout,
           fmt::format("{}: {} parameters\nReport: {}\n", training.output.string(),
                       table.parameter_count(), (training.run.directory / "report.md").string()));
    }
  });
  return ExitCode::ok;
}

/// A configuration read by `read`, whose keys are `fields`.
template <class Config>
ExitCode conversation_command(const JobOptions& options, const MpiSession& session,
                              Config (*read)(const std::string&, const std::string&,
                                             const std::vector<std::string>&),
                              std::vector<ConfigField> (*fields)(Config&)) {
  Communicator comm = session.world().duplicate();
  Config config;
  load_configuration(comm, options.config, [&](const std::string& text) {
    config = read(text, options.config.string(), options.overrides);
    config.validate();
  });
  const ConversationTraining training = training_of(config);
  ExitCode code = ExitCode::ok;
  if (options.dry_run) {
    code = dry_run(training, options, session);
  } else {
    PhaseClock& clock = session.clock();
    ControlPlane control(comm, clock,
                         {.heartbeat_limit_seconds = training.run.heartbeat_limit_seconds});
    clock.set_deadline(training.run.hang_limit_seconds);
    clock.enter("open the run directory");
    Identity identity = identity_values(fields(config));
    identify_training(comm, training, identity);
    RunDirectory directory(comm, {training.run.directory, write_toml(fields(config)), identity,
                                  options.accept_changes, options.resume == "never"});
    try {
      code = carry_out(comm, clock, training, options, identity, directory);
    } catch (const std::exception& error) {
      directory.set_failed(error);
      throw;
    }
    clock.enter("wait for the other ranks");
    comm.barrier();
    clock.enter("close", training.run.heartbeat_limit_seconds);
    control.close(comm);
  }
  comm.close();
  return code;
}

}  // namespace

ExitCode pretrain_command(const JobOptions& options, const MpiSession& session) {
  return conversation_command(options, session, read_pretrain_config, pretrain_fields);
}

ExitCode finetune_command(const JobOptions& options, const MpiSession& session) {
  return conversation_command(options, session, read_finetune_config, finetune_fields);
}

}  // namespace jforge
