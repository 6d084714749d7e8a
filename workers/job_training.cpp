#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/batches/sample_order.h"
#include "data/prompts/prompt_store.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/durable_file.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"
#include "runtime/text_seal.h"
#include "workers/job_worker.h"
#include "workers/round_checkpoint_internal.h"
#include "workers/train/distillation_trainer.h"
#include "workers/train/peak_flops.h"
#include "workers/train/training_checkpoint.h"
#include "workers/train/trajectory_samples.h"
#include "workers/train_and_commit_internal.h"
#include "workers/training_probe.h"

namespace jforge {

namespace {

using Json = nlohmann::json;

constexpr const char* kRoundPhase = "train";

}  // namespace

std::int64_t JobWorker::total_steps(std::int32_t round, std::int64_t num_prompts) const {
  const RoundSettings& settings = config_.rounds.at(static_cast<std::size_t>(round - 1));
  if (settings.steps) {
    return *settings.steps;
  }
  SampleOrderOptions order{config_.run.seed, static_cast<std::uint64_t>(round), num_prompts,
                           config_.train.batch_samples};
  return steps_for_epochs(order, settings.epochs.value_or(1));
}

std::vector<PromptId> JobWorker::prompts_of_round(std::int32_t round,
                                                  std::int64_t num_prompts) const {
  const SampleOrderOptions order{config_.run.seed, static_cast<std::uint64_t>(round), num_prompts,
                                 config_.train.batch_samples};
  return consumed_samples(order, total_steps(round, num_prompts));
}

void JobWorker::record_cleaning(std::int32_t round,
                                const std::optional<FilterCounts>& counts) const {
  if (services_.comm.rank() != 0) {
    return;
  }
  const std::filesystem::path path = layout_.cleaning_report(round);
  if (!counts) {
    std::filesystem::remove(path);  // Of a start with other settings.
    return;
  }
  Json dropped = Json::array();
  std::string text;
  for (std::size_t i = 1; i < counts->size(); ++i) {
    const std::string_view rule = to_string(static_cast<FilterVerdict>(i));
    dropped.push_back({{"rule", rule}, {"count", counts->at(i)}});
    text += fmt::format(", {} {}", rule, counts->at(i));
  }
  spdlog::info("cleaning of round {}: {} trajectories kept{}", round, counts->front(), text);
  const Json report = {{"round", round}, {"kept", counts->front()}, {"dropped", dropped}};
  publish_file(path, seal_json(report.dump(2) + "\n"));
}

/// The training of one round: weights, trajectories, steps, checkpoints. Constructor and run() are
/// collective. Everything is charged to `account` and given back with the object.
class JobWorker::RoundTraining {
 public:
  RoundTraining(JobWorker& job, std::int32_t round, MemoryAccount& account)
      : job_(job),
        services_(job.services_),
        round_(round),
        phase_("train round " + std::to_string(round)),
        account_(account),
        config_(job.config_.train_config(round)),
        mid_round_(job.resumes_within(round)),
        model_(load_weights()),
        prompts_(PromptStore::open(job.layout_.prompts())),
        steps_(job.total_steps(round, prompts_.size())),
        context_{model_.config(), model_.table(), services_.kernels, services_.comm, account},
        last_step_(steps_) {
    job_.round_steps_ = steps_;
    expect_steps_left();
    open_trajectories();
    services_.clock.enter(phase_);
    trainer_.emplace(context_, model_.weights(), config_);
    if (trainer_->keeps_own_weights()) {
      model_.drop_weights();
    }
    if (TrainingProbe::wanted(config_)) {
      together(services_.comm, [&] {
        probe_.emplace(ProbeContext{services_.comm, services_.kernels, account_, model_.config(),
                                    model_.table()},
                       job_.config_, round_, prompts_);
      });
    }
  }

  [[nodiscard]] TrainOutcome run() {
    TrainPlan plan;
    plan.total_steps = steps_;
    plan.checkpoint_every = job_.config_.checkpoint.every_steps;
    plan.peak = PeakFlops::for_shares(services_.kernels, services_.comm, config_.compute,
                                      job_.layout_.peak_flops());
    restore(plan);
    writer_.emplace(services_.comm, job_.layout_.checkpoints(), job_.config_.checkpoint, account_);
    const TrainOutcome outcome =
        train_and_commit(*trainer_, *samples_, plan, hooks(), *writer_,
                         [&](const std::function<void()>& work) { on_disk(work); });
    writer_.reset();  // Its copy of the state is as large as what may be gathered next.
    if (outcome == TrainOutcome::finished) {
      keep_weights();
    }
    return outcome;
  }

 private:
  [[nodiscard]] ModelState& load_weights() {
    services_.clock.enter("load the weights");
    if (mid_round_ && config_.teacher == TeacherKind::frozen) {
      job_.first_weights(round_, "train.teacher = \"frozen\"");
    } else if (mid_round_) {
      job_.make_model();
    } else {
      job_.weights_after(round_ - 1);
    }
    job_.model_rounds_ = -1;  // Mid-round weights match no completed round.
    return *job_.model_;
  }

  /// Throws ConfigError if the round has no step left: a final checkpoint says that it is one, and
  /// nothing would write it.
  void expect_steps_left() {
    together(services_.comm, [&] {
      if (mid_round_ && job_.resume_point_->manifest.state.step >= steps_) {
        throw ConfigError(
            fmt::format("round {} is to end after step {}, and {} is that far or farther; raise "
                        "rounds.{}.steps (or epochs), or --resume from an earlier checkpoint",
                        round_, steps_, job_.resume_point_->directory.string(), round_));
      }
    });
  }

  void open_trajectories() {
    services_.clock.enter("open the trajectories");  // rank 0 reads and checks every byte
    const SampleFilterConfig& filter = config_.filter;
    if (filter.reads_text()) {
      together(services_.comm,
               [&] { tokenizer_.emplace(BytePairTokenizer::load(job_.config_.model.source)); });
    }
    check_ = filter.task ? make_task(*filter.task) : nullptr;
    samples_.emplace(job_.layout_.trajectories(round_),
                     SampleOrderOptions{job_.config_.run.seed, static_cast<std::uint64_t>(round_),
                                        prompts_.size(), job_.config_.train.batch_samples},
                     steps_, job_.config_.noise_schedule(round_), services_.comm,
                     TrajectorySamples::Cleaning{
                         filter, {tokenizer_ ? &*tokenizer_ : nullptr, check_.get(), &prompts_}});
    job_.record_cleaning(round_, samples_->cleaned());
  }

  /// Reads the optimizer's state that the round begins or goes on with.
  void restore(TrainPlan& plan) {
    if (mid_round_) {
      const Checkpoint& resumed = *job_.resume_point_;
      on_disk([&] {
        resume_training(services_.comm, resumed, model_.table(), trainer_->optimizer(), account_);
      });
      plan.steps_done = resumed.manifest.state.step;
      plan.state = trainer_state_of(resumed.manifest.state.cursors);
      forget_other_losses(plan.state.spike_guard, resumed.manifest.state.identity, job_.identity_,
                          round_);
      if (probe_) {
        probe_->restore(plan.state.early_stop);
      }
    } else if (job_.config_.rounds[static_cast<std::size_t>(round_ - 1)].optimizer ==
               OptimizerStart::carry) {
      // Also from the file if the state was in memory a phase ago: a restart between the rounds
      // must find the same.
      on_disk([&] {
        resume_training(services_.comm, job_.final_checkpoint(round_ - 1), model_.table(),
                        trainer_->optimizer(), account_);
      });
    }
  }

  [[nodiscard]] TrainHooks hooks() {
    TrainHooks hooks;
    hooks.clock = &services_.clock;
    hooks.on_step = [this](const StepMetrics& metrics) { report(metrics); };
    if (probe_) {
      hooks.probe = [this](StepMetrics& metrics) { return probe_ends(metrics); };
    }
    hooks.at_boundary = [this] {
      if (probe_) {
        probe_->expect_no_collapse();
      }
      on_disk([&] { writer_->poll(); });
    };
    hooks.save = [this](std::int64_t step) { save(step); };
    return hooks;
  }

  void report(StepMetrics metrics) {
    if (const auto& counts = samples_->cleaned()) {
      metrics.filtered = std::accumulate(counts->begin() + 1, counts->end(), std::int64_t{0});
    }
    if (const auto warning = unbalanced_gradients(metrics);
        warning && !warned_ && services_.comm.rank() == 0) {
      spdlog::warn("{}", *warning);
      warned_ = true;
    }
    if (services_.on_step) {
      services_.on_step(round_, metrics);
    }
  }

  [[nodiscard]] bool probe_ends(StepMetrics& metrics) {
    services_.clock.enter("probe of " + phase_);
    const TensorView whole = trainer_->keeps_own_weights() ? TensorView() : model_.weights();
    const bool ends = probe_->check(trainer_->store(), whole, metrics);
    services_.clock.enter(phase_);
    last_step_ = ends ? metrics.step : steps_;
    return ends;
  }

  void save(std::int64_t step) {
    TrainerState state = trainer_->state();
    if (probe_) {
      state.early_stop = probe_->state();
    }
    // A round that a probe has ended has no more steps than these.
    const Json cursors = {{"total_steps", last_step_},
                          {"model_source", job_.config_.model.source.string()},
                          {kGeneratedFrom, job_.trajectory_origin_}};
    on_disk([&] {
      save_training(
          *writer_,
          {round_, step, kRoundPhase, 0, job_.identity_, with_trainer_state(cursors.dump(), state)},
          model_.table(), trainer_->optimizer());
    });
  }

  /// After a finished round: gathers the weights for the next one. After the last one they are
  /// exported from the checkpoint.
  void keep_weights() {
    const bool needed = static_cast<std::size_t>(round_) < job_.config_.rounds.size();
    if (trainer_->keeps_own_weights() && needed) {
      together(services_.comm, [&] { model_.take_weights(job_.weights_account_); });
      trainer_->store().gather_masters(model_.weights());
    }
    job_.rounds_trained_ = round_;
    job_.model_rounds_ = trainer_->keeps_own_weights() && !needed ? -1 : round_;
    job_.resume_point_.reset();
  }

  void on_disk(const std::function<void()>& work) {
    services_.clock.enter("checkpoint");
    work();
    services_.clock.enter(phase_);
  }

  JobWorker& job_;
  WorkerServices& services_;
  const std::int32_t round_;
  const std::string phase_;
  MemoryAccount& account_;
  const TrainConfig config_;
  const bool mid_round_;
  ModelState& model_;
  const PromptStore prompts_;
  const std::int64_t steps_;
  const TrainContext context_;
  std::int64_t last_step_;  ///< The step that ends the round, as far as is known.
  bool warned_ = false;     ///< Of unbalanced gradients.
  std::optional<BytePairTokenizer> tokenizer_;
  std::unique_ptr<Task> check_;
  std::optional<TrajectorySamples> samples_;
  std::optional<DistillationTrainer> trainer_;
  std::optional<TrainingProbe> probe_;
  std::optional<CheckpointWriter> writer_;
};

bool JobWorker::train(std::int32_t round) {
  services_.clock.enter("generation report");
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() == 0) {
      ensure_generation_report(round);
    }
  }));
  MemoryAccount account("training");
  const TrainOutcome outcome = RoundTraining(*this, round, account).run();
  if (model_rounds_ < 0) {
    model_.reset();
  }
  round_steps_ = 0;
  end_phase(account);
  return outcome == TrainOutcome::finished;
}

}  // namespace jforge
