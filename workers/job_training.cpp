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

bool JobWorker::train(std::int32_t round) {
  const std::string phase = "train round " + std::to_string(round);
  const auto on_disk = [&](const std::function<void()>& work) {
    services_.clock.enter("checkpoint");
    work();
    services_.clock.enter(phase);
  };
  services_.clock.enter("generation report");
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() == 0) {
      ensure_generation_report(round);
    }
  }));
  services_.clock.enter("load the weights");
  MemoryAccount account("training");
  TrainOutcome outcome = TrainOutcome::interrupted;
  {
    const bool mid_round = resumes_within(round);
    const TrainConfig train_config = config_.train_config(round);
    if (mid_round && train_config.teacher == TeacherKind::frozen) {
      first_weights(round, "train.teacher = \"frozen\"");
    } else if (mid_round) {
      make_model();
    } else {
      weights_after(round - 1);
    }
    model_rounds_ =
        -1;  // until the round is through, the weights in memory belong to no round's end
    ModelState& model = *model_;
    const PromptStore prompts = PromptStore::open(layout_.prompts());
    const std::int64_t num_prompts = prompts.size();
    const std::int64_t steps = total_steps(round, num_prompts);
    round_steps_ = steps;
    together(services_.comm, [&] {
      // A round's final checkpoint says so of itself, and no step would be left to write one.
      if (mid_round && resume_point_->manifest.state.step >= steps) {
        throw ConfigError(
            fmt::format("round {} is to end after step {}, and {} is that far or farther; raise "
                        "rounds.{}.steps (or epochs), or --resume from an earlier checkpoint",
                        round, steps, resume_point_->directory.string(), round));
      }
    });
    services_.clock.enter("open the trajectories");  // rank 0 reads and checks every byte
    const SampleFilterConfig& filter = train_config.filter;
    std::optional<BytePairTokenizer> tokenizer;
    if (filter.reads_text()) {
      together(services_.comm,
               [&] { tokenizer.emplace(BytePairTokenizer::load(config_.model.source)); });
    }
    const std::unique_ptr<Task> check = filter.task ? make_task(*filter.task) : nullptr;
    TrajectorySamples samples(layout_.trajectories(round),
                              {config_.run.seed, static_cast<std::uint64_t>(round), num_prompts,
                               config_.train.batch_samples},
                              steps, config_.noise_schedule(round), services_.comm,
                              {filter, {tokenizer ? &*tokenizer : nullptr, check.get(), &prompts}});
    record_cleaning(round, samples.cleaned());
    services_.clock.enter(phase);
    const TrainContext context{model.config(), model.table(), services_.kernels, services_.comm,
                               account};
    DistillationTrainer trainer(context, model.weights(), train_config);
    if (trainer.keeps_own_weights()) {
      model.drop_weights();
    }
    std::optional<TrainingProbe> probe;
    if (TrainingProbe::wanted(train_config)) {
      together(services_.comm, [&] {
        probe.emplace(
            ProbeContext{services_.comm, services_.kernels, account, model.config(), model.table()},
            config_, round, prompts);
      });
    }
    TrainPlan plan;
    plan.total_steps = steps;
    plan.checkpoint_every = config_.checkpoint.every_steps;
    plan.peak = PeakFlops::for_shares(services_.kernels, services_.comm,
                                      config_.train_config(round).compute, layout_.peak_flops());
    if (mid_round) {
      on_disk([&] {
        resume_training(services_.comm, *resume_point_, model.table(), trainer.optimizer(),
                        account);
      });
      plan.steps_done = resume_point_->manifest.state.step;
      plan.state = trainer_state_of(resume_point_->manifest.state.cursors);
      forget_other_losses(plan.state.spike_guard, resume_point_->manifest.state.identity, identity_,
                          round);
      if (probe) {
        probe->restore(plan.state.early_stop);
      }
    } else if (config_.rounds[static_cast<std::size_t>(round - 1)].optimizer ==
               OptimizerStart::carry) {
      // From the file also when the state was in memory a phase ago: a restart between the rounds
      // must find the same.
      on_disk([&] {
        resume_training(services_.comm, final_checkpoint(round - 1), model.table(),
                        trainer.optimizer(), account);
      });
    }
    std::optional<CheckpointWriter> writer(std::in_place, services_.comm, layout_.checkpoints(),
                                           config_.checkpoint, account);
    TrainHooks hooks;
    hooks.clock = &services_.clock;
    bool warned = false;
    hooks.on_step = [&](StepMetrics metrics) {
      if (const auto& counts = samples.cleaned()) {
        metrics.filtered = std::accumulate(counts->begin() + 1, counts->end(), std::int64_t{0});
      }
      if (const auto warning = unbalanced_gradients(metrics);
          warning && !warned && services_.comm.rank() == 0) {
        spdlog::warn("{}", *warning);
        warned = true;
      }
      if (services_.on_step) {
        services_.on_step(round, metrics);
      }
    };
    std::int64_t last_step = steps;
    if (probe) {
      hooks.probe = [&](StepMetrics& metrics) {
        services_.clock.enter("probe of " + phase);
        const TensorView whole = trainer.keeps_own_weights() ? TensorView() : model.weights();
        const bool ends = probe->check(trainer.store(), whole, metrics);
        services_.clock.enter(phase);
        last_step = ends ? metrics.step : steps;
        return ends;
      };
    }
    hooks.at_boundary = [&] {
      if (probe) {
        probe->expect_no_collapse();
      }
      on_disk([&] { writer->poll(); });
    };
    hooks.save = [&](std::int64_t step) {
      TrainerState state = trainer.state();
      if (probe) {
        state.early_stop = probe->state();
      }
      // A round that a probe has ended has no more steps than these.
      const Json cursors = {{"total_steps", last_step},
                            {"model_source", config_.model.source.string()},
                            {kGeneratedFrom, trajectory_origin_}};
      on_disk([&] {
        save_training(
            *writer,
            {round, step, kRoundPhase, 0, identity_, with_trainer_state(cursors.dump(), state)},
            model.table(), trainer.optimizer());
      });
    };
    outcome = train_and_commit(trainer, samples, plan, hooks, *writer, on_disk);
    writer.reset();  // Its copy of the state is as large as what may be gathered below.
    const bool finished = outcome == TrainOutcome::finished;
    // After the last round the weights are exported from the checkpoint.
    const bool needed = finished && static_cast<std::size_t>(round) < config_.rounds.size();
    if (trainer.keeps_own_weights() && needed) {
      together(services_.comm, [&] { model.take_weights(weights_account_); });
      trainer.store().gather_masters(model.weights());
    }
    if (finished) {
      rounds_trained_ = round;
      model_rounds_ = trainer.keeps_own_weights() && !needed ? -1 : round;
      resume_point_.reset();
    }
  }
  if (model_rounds_ < 0) {
    model_.reset();
  }
  round_steps_ = 0;
  end_phase(account);
  return outcome == TrainOutcome::finished;
}

}  // namespace jforge
