// jforge pretrain and jforge finetune: one command with two configurations.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoints/hf_model.h"
#include "coordinator/control_plane.h"
#include "launch/commands/commands.h"
#include "launch/commands/conversation_plan.h"
#include "launch/commands/job_plan.h"
#include "launch/commands/plan_time.h"
#include "launch/commands/progress_display.h"
#include "launch/commands/run_directory.h"
#include "launch/config/job_fields.h"
#include "model/transformer/parameter_table.h"
#include "results/report/report.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/local_rank.h"
#include "runtime/console.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "workers/conversation_training.h"
#include "workers/job_kernels.h"
#include "workers/run_layout.h"

namespace jforge {

namespace {

/// Collective; called before memory is held.
void expect_memory(const ConversationTraining& training, const PreparedTraining& prepared,
                   Device device, const Communicator& comm) {
  const SharingRanks sharing = sharing_ranks(comm, device);
  together(comm, [&] {
    expect_attention(device, prepared.model);
    const MemoryPlan plan = plan_memory(training, prepared, comm.size(), device);
    JobConfig config;  // For the keys in messages.
    config.train.tokens_per_rank = training.train.tokens_per_rank;
    expect_fits_here(plan, config, {.generation = false}, sharing);
  });
}

/// Collective. Throws DataError if ranks read different pairs, perhaps from their own disks: ranks
/// train shares of the pairs, so some would be trained twice or never.
PreparedTraining prepare_together(const Communicator& comm, const ConversationTraining& training) {
  PreparedTraining prepared;
  together(comm, [&] { prepared = prepare(training); });
  const std::string hash = content_hash(prepared);
  const std::string first = broadcast_text(comm, hash, 0);
  together(comm, [&] {
    if (hash != first) {
      throw DataError(fmt::format(
          "it has read other pairs or another tokenizer than rank 0, {} samples of {}; all hosts "
          "need the same files",
          prepared.samples.size(), fmt::join(training.files.files, ", ")));
    }
  });
  return prepared;
}

ExitCode dry_run(const ConversationTraining& training, const JobOptions& options,
                 const MpiSession& session) {
  const Communicator& comm = session.world();
  session.clock().enter("plan");
  const PreparedTraining prepared = prepare_together(comm, training);
  const auto kernels = make_job_kernels(comm, training.device, common_bfloat16_sums(comm));
  const MachineSpeed speed =
      measure_speed(*kernels, comm, WeightStorage::float32, training.train.compute,
                    RunLayout(training.run.directory).peak_flops());
  const int ranks = options.planned_ranks.value_or(comm.size());
  if (comm.rank() == 0) {
    fmt::print("{}", describe_plan(training, prepared, ranks, kernels->device(), speed));
  }
  return ExitCode::ok;
}

ExitCode carry_out(const RankGrid& grid, PhaseClock& clock, const ConversationTraining& training,
                   const JobOptions& options, Identity identity, RunDirectory& directory) {
  const Communicator& comm = grid.all;
  const BFloat16Sums sums = directory.bfloat16_sums();
  record_bfloat16_sums(sums, identity);
  const std::unique_ptr<KernelSet> kernels = make_job_kernels(comm, training.device, sums);
  if (training.train.compute == DType::bfloat16) {
    warn_of_slow_bfloat16(comm, *kernels);
  }
  clock.enter("check the ranks");
  check_ranks(comm, *kernels);
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
  const bool finished =
      train_on_conversations(training, std::move(prepared),
                             {{comm, *kernels, clock, grid},
                              on_step,
                              [&](bool steps_left) {
                                directory.record(comm);
                                if (steps_left) {
                                  directory.forget_finished();
                                }
                              },
                              directory.last_finished().has_value()},
                             identity, parse_resume_choice(options.resume),
                             {options.accept_changes, directory.accepted_changes()});
  display.end();
  directory.set_status(finished ? "finished" : "interrupted", training.phase);
  if (!finished) {
    log_warn("stopped; everything committed is safe, run the same command again to go on");
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

template <class Config>
ExitCode conversation_command(const JobOptions& options, const MpiSession& session,
                              Config (*read)(const std::string&, const std::string&,
                                             const std::vector<std::string>&),
                              std::vector<ConfigField> (*fields)(Config&)) {
  Communicator comm = session.world().duplicate();
  Config config;
  load_configuration(comm, options.config, [&](const std::string& text) {
    config = read(text, options.config.string(), options.overrides);
    if constexpr (requires { config.model.compute; }) {
      config.model.choose_for(resolve_device(config.model.device));
    }
    config.validate();
  });
  const ConversationTraining training = training_of(config);
  const RankGrid grid(comm, training.train.shard_ranks);
  together(comm, [&] {
    if (comm.rank() == 0) {
      expect_exportable(training.source, training.output);
      expect_only_an_export(training.output);
    }
  });
  ExitCode code = ExitCode::ok;
  if (options.dry_run) {
    code = dry_run(training, options, session);
  } else {
    PhaseClock& clock = session.clock();
    ControlPlane control(comm, clock,
                         {.heartbeat_limit_seconds = training.run.heartbeat_limit_seconds});
    clock.set_deadline(training.run.hang_limit_seconds);
    clock.enter("open the run directory");
    Identity identity = identity_of(config);
    identify_training(comm, training, identity);
    if (training.train.compute == DType::bfloat16 &&
        resolve_device(training.device) == Device::cpu) {
      record_bfloat16_sums(common_bfloat16_sums(comm), identity);
    }
    RunDirectory directory(comm, {training.run.directory, write_toml(fields(config)), identity,
                                  options.accept_changes, options.resume == "never"});
    try {
      code = carry_out(grid, clock, training, options, identity, directory);
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
