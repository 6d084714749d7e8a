#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoints/hf_model.h"
#include "checkpoints/tokenizer_fit.h"
#include "coordinator/control_plane.h"
#include "coordinator/phase_machine.h"
#include "data/prompts/file_patterns.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "launch/commands/commands.h"
#include "launch/commands/job_plan.h"
#include "launch/commands/progress_display.h"
#include "launch/commands/run_directory.h"
#include "launch/config/job_fields.h"
#include "results/report/report.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/local_rank.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/console.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"
#include "workers/evaluate/evaluation_plan.h"
#include "workers/job_kernels.h"
#include "workers/job_worker.h"
#include "workers/run_layout.h"

namespace jforge {

namespace {

using CommandSource = std::function<Command(const DurableFacts&)>;

JobFacts job_facts(const JobConfig& config, const DurableFacts& durable) {
  JobFacts facts;
  facts.rounds = static_cast<std::int32_t>(config.rounds.size());
  facts.prompts_imported = durable.prompts_imported;
  facts.rounds_trained = durable.rounds_trained;
  facts.round_generated = durable.round_generated;
  facts.exported = durable.exported;
  if (!config.evaluate.tasks.empty()) {
    facts.models_to_evaluate = {"base", "final"};
  }
  return facts;
}

// Returns identity keys and the hashes of the named inputs.
Identity job_identity(const Communicator& comm, JobConfig& config) {
  Identity identity = identity_of(config);
  std::string tokenizer_hash;
  together(comm, [&] {
    fault_point("identity");
    if (comm.rank() == 0) {
      const auto tokenizer = BytePairTokenizer::load(config.model.source);
      expect_tokenizer_fits(config.model.source, tokenizer, read_hf_config(config.model.source));
      tokenizer_hash = tokenizer.content_hash();
    }
  });
  identity[kTokenizerHash] = broadcast_text(comm, tokenizer_hash, 0);
  identity[kModelHash] = hf_model_hash(comm, config.model.source);
  if (config.model.multiplies_bfloat16() && resolve_device(config.model.device) == Device::cpu) {
    record_bfloat16_sums(common_bfloat16_sums(comm), identity);
  }
  return identity;
}

// Rank 0 finds errors that would otherwise appear after the import or after all training.
void expect_end_possible(const Communicator& comm, const JobConfig& config, bool programs) {
  together(comm, [&] {
    if (comm.rank() != 0) {
      return;
    }
    const RunLayout layout(config.run.directory);
    const TransformerConfig model = read_hf_config(config.model.source);
    for (const RoundSettings& round : config.rounds) {
      static_cast<void>(config.required_positions(round, /*longest_prompt=*/1, model));
    }
    static_cast<void>(config.train.table(model, 1));  // A model may not have the head.
    expect_exportable(config.model.source, layout.model());
    expect_replaceable_model(layout);
    for (const std::filesystem::path& path : {layout.model(), layout.checkpoints()}) {
      if (std::filesystem::is_symlink(path) && !std::filesystem::exists(path)) {
        throw EnvironmentError(
            fmt::format("{}: a link to {}, which is not there; mount it, or "
                        "remove the link",
                        path.string(), std::filesystem::read_symlink(path).string()));
      }
    }
    if (!config.evaluate.tasks.empty()) {
      expect_evaluable(config.evaluate, model, config.model.source,
                       config.prompts.template_options(), programs);
    }
  });
}

// Rank 0 finds errors of an import that is still to come.
void expect_importable(const Communicator& comm, const JobConfig& config) {
  together(comm, [&] {
    if (comm.rank() != 0 || std::filesystem::exists(RunLayout(config.run.directory).prompts())) {
      return;
    }
    static_cast<void>(match_files(config.prompts.files));
    expect_turns_stop(BytePairTokenizer::load(config.model.source),
                      ChatTemplate::load(config.model.source, config.prompts.template_options()),
                      read_hf_config(config.model.source));
  });
}

void expect_round(const JobOptions& options, const JobConfig& config, const PlannedPhases& phases) {
  if (config.rounds.empty() && (phases.generation || phases.training)) {
    throw ConfigError("the configuration has no [[rounds]]; add at least one");
  }
  if (options.round &&
      (*options.round < 1 || std::cmp_greater(*options.round, config.rounds.size()))) {
    throw ConfigError(
        fmt::format("--round {}: the configuration has {} [[rounds]]; give a number from 1 to {}",
                    *options.round, config.rounds.size(), config.rounds.size()));
  }
}

JobConfig load_job_config(const Communicator& comm, const JobOptions& options,
                          const PlannedPhases& phases) {
  JobConfig config;
  load_configuration(comm, options.config, [&](const std::string& text) {
    config = read_job_config(text, options.config.string(), options.overrides);
    config.model.choose_for(options.device_plan.empty() ? resolve_device(config.model.device)
                                                        : Device::cuda);
    if (options.first_round_steps) {
      config.rounds.resize(1);
      config.rounds[0].epochs.reset();
      config.rounds[0].steps = options.first_round_steps;
    }
    config.validate(options.planned_ranks.value_or(comm.size()));
    expect_round(options, config, phases);
    if (options.part.first < 1 || options.part.first > options.part.second) {
      throw ConfigError(fmt::format("--part {}/{}: give K/N with K from 1 to N", options.part.first,
                                    options.part.second));
    }
    config.part = options.part;
  });
  return config;
}

/// State of a job on this rank, in order of construction.
class Job {
 public:
  Job(const JobOptions& options, const MpiSession& session, const PlannedPhases& phases,
      bool all_phases)
      : comm_(session.world().duplicate()),
        clock_(session.clock()),
        phases_(phases),
        all_phases_(all_phases),
        config_(load_config(options)),
        grid_(comm_, config_.train.shard_ranks),
        control_(comm_, clock_,
                 {config_.run.heartbeat_limit_seconds, config_.run.hang_limit_seconds}),
        identity_(job_identity(comm_, config_)),
        directory_(comm_,
                   {config_.run.directory, write_toml(job_fields(config_)), identity_,
                    options.accept_changes, options.resume == "never", part_name(options.part)}),
        kernels_(make_job_kernels(comm_, config_.model.device, directory_.bfloat16_sums())) {
    record_bfloat16_sums(directory_.bfloat16_sums(), identity_);
    warn_of_rounding(comm_, config_.model.decode_weights);
    if (config_.model.multiplies_bfloat16()) {
      warn_of_slow_bfloat16(comm_, *kernels_);
    }
    clock_.enter("check the ranks");
    check_ranks(comm_, *kernels_);
    directory_.set_device(describe_device(kernels_->device(), local_rank(comm_)));
    WorkerServices services{{comm_, *kernels_, clock_, grid_}, control_.channel()};
    services.on_import = [this](const ImportProgress& progress) { display_.import(progress); };
    services.on_evaluation = [this](const EvaluationProgress& progress) {
      if (comm_.rank() == 0) {
        display_.evaluation(progress);
      }
    };
    services.on_step = [this](std::int32_t round, std::int64_t steps, const StepMetrics& metrics) {
      directory_.log_step(round, metrics);
      if (comm_.rank() == 0) {
        display_.step(metrics, steps);
      }
    };
    services.on_prompt = [this] {
      if (const Coordinator* coordinator = control_.coordinator()) {
        display_.generation(coordinator->progress(), config_.generate.max_new_tokens,
                            config_.generate.method == GenerationMethod::parallel);
      }
    };
    worker_.emplace(config_, std::move(services), identity_,
                    AcceptedChanges{options.accept_changes, directory_.accepted_changes()});
    clock_.enter("resume");
    worker_->resume(parse_resume_choice(options.resume));
  }

  [[nodiscard]] const JobConfig& config() const noexcept { return config_; }

  /// Collective. Runs the source's commands until finish or a stop.
  ExitCode run(const CommandSource& source) {
    try {
      const ExitCode code = run_commands(source);
      close();
      return code;
    } catch (const std::exception& error) {
      directory_.set_failed(error);
      throw;
    }
  }

 private:
  // The last phases without heartbeats.
  JobConfig load_config(const JobOptions& options) {
    clock_.enter("read the configuration");
    JobConfig config = load_job_config(comm_, options, phases_);
    if (options.part.second > 1) {
      config.run.directory = RunLayout(config.run.directory).parts() / part_name(options.part);
    }
    clock_.set_deadline(config.run.hang_limit_seconds);
    clock_.enter("open the run directory");
    return config;
  }

  ExitCode run_commands(const CommandSource& source) {
    for (;;) {
      const Command command = next(source);
      if (command.kind == Command::Kind::finish) {
        record();
        directory_.set_status("finished", "finish");
        return ExitCode::ok;
      }
      set_log_phase(to_string(command));
      log_info("begins");
      directory_.set_status("running", to_string(command));
      expect_end_for(command);
      expect_memory_for(command);
      record();
      display_.begin(to_string(command));
      const bool finished =
          command.kind == Command::Kind::report ? report() : worker_->execute(command);
      clock_.enter("between phases");
      display_.end();
      if (finished && command.kind == Command::Kind::evaluate) {
        show_evaluation(command.model);
      }
      if (command.kind == Command::Kind::generate && control_.coordinator() != nullptr) {
        control_.coordinator()->close_round();
      }
      if (!finished) {
        directory_.set_status("interrupted", to_string(command));
        log_warn("stopped in {}; everything committed is safe, run the same command again to go on",
                 to_string(command));
        return ExitCode::interrupted;
      }
    }
  }

  // Called after everything that can refuse the start.
  void record() {
    if (!recorded_) {
      worker_->accept_start();
      directory_.record(comm_);
      recorded_ = true;
    }
  }

  // Checks only if something is made: finished phases can be evaluated anywhere.
  void expect_end_for(const Command& command) {
    const bool makes = command.kind == Command::Kind::import_prompts ||
                       command.kind == Command::Kind::generate ||
                       command.kind == Command::Kind::train;
    if (command.kind == Command::Kind::import_prompts) {
      expect_importable(comm_, config_);
    }
    if (all_phases_ && makes && !end_checked_) {
      clock_.enter("read what is to be evaluated");
      expect_end_possible(comm_, config_, /*programs=*/true);
      end_checked_ = true;
    }
  }

  // Before anything is held and with known prompt lengths, so that no later round is refused.
  void expect_memory_for(const Command& command) {
    const bool heavy =
        command.kind == Command::Kind::generate || command.kind == Command::Kind::train;
    if (heavy && !memory_checked_) {
      if (all_phases_) {
        worker_->expect_rounds_possible();
      }
      expect_memory(config_, phases_, kernels_->device(), comm_);
      if (phases_.training) {
        expect_collectives(comm_, config_.sharding().home(kernels_->device()),
                           config_.train.collectives);
      }
      memory_checked_ = true;
    }
  }

  // Rank 0 asks the source and opens the round's leases; every rank gets the command.
  Command next(const CommandSource& source) {
    clock_.enter("choose the next phase");
    std::string text;
    const bool stop = agree(comm_, stop_requested(), [&] {
      if (comm_.rank() == 0) {
        const DurableFacts facts = worker_->facts();
        const Command command = source(facts);
        const bool generates = command.kind == Command::Kind::generate;
        if (generates || command.kind == Command::Kind::train) {
          expect(command.round == facts.rounds_trained + 1, "a round out of turn");
          set_aside(facts.open);
        }
        if (generates) {
          open_round(command.round, facts.open);
        }
        text = encode(command);
      }
    });
    Command command = parse_command(broadcast_text(comm_, text, 0));
    // A stop between phases ends the job, unless it is finishing anyway.
    if (stop && command.kind != Command::Kind::finish) {
      request_stop();
    }
    return command;
  }

  void open_round(std::int32_t round, const OpenPrompts& open) {
    std::vector<PendingPrompt> pending;
    for (const OpenPrompts::Prompt& prompt : open.prompts) {
      pending.push_back({prompt.id, prompt.tokens});
    }
    const LeaseSizes sizes{.most = config_.generate.prompts_per_lease, .ranks = comm_.size()};
    control_.coordinator()->open_round(round,
                                       LeaseQueue(std::move(pending), sizes, open.next_lease));
  }

  bool report() {
    clock_.enter("report");
    const bool stop = agree(comm_, stop_requested(), [&] {
      if (comm_.rank() == 0) {
        worker_->mend_generation_reports();
        const ReportTables tables = write_report(config_.run.directory);
        tell(stdout, fmt::format("{}{}Report: {}\n", tables.evaluation, tables.headline,
                                 (config_.run.directory / "report.md").string()));
      }
    });
    return !stop;
  }

  void show_evaluation(const std::string& model) {
    static_cast<void>(agree(comm_, false, [&] {
      directory_.log_evaluation(
          model, model == "base" ? 0 : static_cast<std::int32_t>(config_.rounds.size()));
    }));
  }

  void close() {
    clock_.enter("wait for the other ranks");
    // Rank 0 may still write run.json to a slow disk; a closed channel sends no heartbeats, and the
    // rank would be declared lost.
    comm_.barrier();
    // The rest is fast, and closed channels are not watched.
    clock_.enter("close", config_.run.heartbeat_limit_seconds);
    control_.close(comm_);
    worker_.reset();
    comm_.close();
  }

  Communicator comm_;
  PhaseClock& clock_;
  PlannedPhases phases_;
  bool all_phases_;
  JobConfig config_;
  RankGrid grid_;
  ControlPlane control_;
  Identity identity_;
  RunDirectory directory_;
  std::unique_ptr<KernelSet> kernels_;
  ProgressDisplay display_{
      [this](const PhaseProgress& progress) { directory_.set_progress(progress); }};
  std::optional<JobWorker> worker_;
  bool recorded_ = false;
  bool end_checked_ = false;
  bool memory_checked_ = false;
};

ExitCode dry_run(const JobOptions& options, const MpiSession& session, const PlannedPhases& phases,
                 bool all_phases) {
  session.clock().enter("plan");
  const JobConfig config = load_job_config(session.world(), options, phases);
  const auto end = [&] {
    std::fflush(stdout);
    const bool imports = all_phases || (!phases.generation && !phases.training);
    if (imports) {
      expect_importable(session.world(), config);
    }
    if (all_phases) {
      expect_end_possible(session.world(), config, /*programs=*/false);
    }
    return ExitCode::ok;
  };
  if (const KnownDevice* const device = find_known_device(options.device_plan)) {
    if (session.world().rank() == 0) {
      fmt::print(
          "{}", describe_device_plan(config, options.planned_ranks.value_or(session.world().size()),
                                     *device));
    }
    return end();
  }
  const auto kernels =
      make_job_kernels(session.world(), config.model.device, common_bfloat16_sums(session.world()));
  const MachineSpeed speed =
      measure_speed(*kernels, session.world(), config.model.decode_weights,
                    config.sharding().compute, RunLayout(config.run.directory).peak_flops());
  const PlannedRanks ranks =
      options.planned_ranks ? PlannedRanks{*options.planned_ranks, *options.planned_ranks}
                            : PlannedRanks{session.world().size(), ranks_on_host(session.world())};
  if (session.world().rank() == 0) {
    fmt::print("{}", describe_plan(config, ranks, kernels->device(), speed));
  }
  return end();
}

// Runs the command, if not done yet, then finish.
ExitCode run_phase(const JobOptions& options, const MpiSession& session,
                   const PlannedPhases& phases,
                   const std::function<std::optional<Command>(const DurableFacts&)>& phase) {
  if (options.dry_run) {
    return dry_run(options, session, phases, /*all_phases=*/false);
  }
  Job job(options, session, phases, /*all_phases=*/false);
  return job.run([&](const DurableFacts& facts) { return phase(facts).value_or(Command{}); });
}

void expect_ready(bool ready, const std::string& what) {
  if (!ready) {
    throw ConfigError(what);
  }
}

}  // namespace

ExitCode run_command(const JobOptions& options, const MpiSession& session) {
  if (options.dry_run) {
    return dry_run(options, session, PlannedPhases{}, /*all_phases=*/true);
  }
  Job job(options, session, PlannedPhases{}, /*all_phases=*/true);
  // Once per process: the evaluation's files know what is current, and a finished run may have a
  // new model or settings.
  std::vector<std::string> evaluated;
  bool reported = false;
  return job.run([&](const DurableFacts& durable) {
    JobFacts facts = job_facts(job.config(), durable);
    facts.models_evaluated = evaluated;
    facts.reported = reported;
    Command command = next_command(facts);
    reported = reported || command.kind == Command::Kind::report;
    if (command.kind == Command::Kind::evaluate) {
      evaluated.push_back(command.model);
    }
    return command;
  });
}

ExitCode import_command(const JobOptions& options, const MpiSession& session) {
  return run_phase(options, session, {.generation = false, .training = false},
                   [](const DurableFacts& facts) -> std::optional<Command> {
                     return facts.prompts_imported
                                ? std::nullopt
                                : std::optional<Command>({Command::Kind::import_prompts, 0, {}});
                   });
}

ExitCode generate_command(const JobOptions& options, const MpiSession& session) {
  const std::int32_t round = options.round.value_or(1);
  return run_phase(
      options, session, {.generation = true, .training = false},
      [round](const DurableFacts& facts) -> std::optional<Command> {
        expect_ready(facts.prompts_imported,
                     "there are no imported prompts yet; run jforge import first");
        expect_ready(
            facts.rounds_trained >= round - 1,
            fmt::format("round {} generates from the model of round {}, which is not trained yet",
                        round, round - 1));
        const bool to_take = facts.rounds_trained < round && !facts.open.of_parts.empty();
        return facts.round_generated >= round && !to_take
                   ? std::nullopt
                   : std::optional<Command>({Command::Kind::generate, round, {}});
      });
}

ExitCode train_command(const JobOptions& options, const MpiSession& session) {
  const std::int32_t round = options.round.value_or(1);
  return run_phase(
      options, session, {.generation = false, .training = true},
      [round](const DurableFacts& facts) -> std::optional<Command> {
        if (facts.rounds_trained >= round) {
          return std::nullopt;
        }
        expect_ready(
            facts.rounds_trained == round - 1 && facts.round_generated >= round,
            fmt::format(
                "round {} has no complete trajectories yet; run jforge generate --round {} first",
                round, round));
        return Command{Command::Kind::train, round, {}};
      });
}

}  // namespace jforge
