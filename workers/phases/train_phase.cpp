#include "workers/phases/train_phase.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"
#include "workers/resume_choice.h"
#include "workers/train/peak_flops.h"
#include "workers/train/training_checkpoint.h"
#include "workers/training_probe.h"

namespace jforge {

namespace {
using StepClock = std::chrono::steady_clock;

void raise_to_time_since(StepClock::time_point begin, double& seconds) {
  seconds = std::max(seconds, std::chrono::duration<double>(StepClock::now() - begin).count());
}
}  // namespace

TrainPhase::TrainPhase(const PhaseServices& services, ModelShard& model, const TrainConfig& config,
                       Settings settings, MemoryAccount& account, const ModelShard* base)
    : services_(services),
      model_(model),
      config_(config),
      settings_(std::move(settings)),
      account_(account),
      trainer_({model.config(), model.table(), services.kernels, services.comm, account,
                &services.grid, freeze(base)},
               model.weights(), config_),
      last_step_(settings_.steps) {
  model.drop();
  plan_.total_steps = settings_.steps;
  plan_.checkpoint_every = settings_.checkpoint.every_steps;
  plan_.peak = PeakFlops::for_shares(services_.kernels, services_.comm, config_.compute,
                                     settings_.layout.peak_flops());
}

std::optional<FrozenModel> TrainPhase::freeze(const ModelShard* base) {
  if (base == nullptr) {
    return std::nullopt;
  }
  frozen_memory_ = base->whole(config_.compute, services_.kernels, account_);
  frozen_.emplace(base->table(), frozen_memory_.view(config_.compute, {base->table().flat_size()}),
                  services_.kernels, account_);
  return FrozenModel{base->table(), *frozen_};
}

void TrainPhase::carry_optimizer(const Checkpoint& checkpoint) {
  on_disk([&] {
    resume_training(services_.comm, checkpoint, model_.table(), trainer_.optimizer(), account_);
  });
}

void TrainPhase::resume(const Checkpoint& checkpoint) {
  carry_optimizer(checkpoint);
  const CheckpointState& state = checkpoint.manifest.state;
  plan_.steps_done = state.step;
  plan_.state = trainer_state_of(state.cursors);
  forget_other_losses(plan_.state.spike_guard, state.identity, settings_.identity, settings_.round);
  if (probe_ != nullptr) {
    probe_->restore(plan_.state.early_stop);
  }
}

TrainOutcome TrainPhase::run(SampleSource& samples,
                             const std::function<void(const StepMetrics&)>& on_step) {
  services_.clock.enter(settings_.name);
  CheckpointWriter writer(services_.comm, settings_.layout.checkpoints(), settings_.checkpoint,
                          account_);
  TrainOutcome outcome = TrainOutcome::interrupted;
  try {
    outcome = trainer_.run(samples, plan_, hooks(writer, on_step));
  } catch (const Error& failure) {
    if (failure.on_all_ranks() && !trainer_.state_in_question()) {
      finish_after_failure(writer);
    }
    throw;
  }
  on_disk([&] { writer.finish(); });
  return outcome;
}

void TrainPhase::finish_after_failure(CheckpointWriter& writer) {
  on_disk([&] {
    try {
      writer.finish();
    } catch (const std::exception& error) {
      log_error("the checkpoint that was being written is lost: {}", error.what());
    }
  });
}

TrainHooks TrainPhase::hooks(CheckpointWriter& writer,
                             const std::function<void(const StepMetrics&)>& on_step) {
  TrainHooks hooks;
  hooks.clock = &services_.clock;
  step_began_ = StepClock::now();
  hooks.on_step = on_step;
  if (probe_ != nullptr) {
    hooks.probe = [this](StepMetrics& metrics) { return probe_ends(metrics); };
  }
  hooks.at_boundary = [this, &writer] {
    if (probe_ != nullptr) {
      probe_->expect_no_collapse();
    }
    on_disk([&] {
      if (writer.poll() && save_began_) {
        raise_to_time_since(*save_began_, longest_save_);
        save_began_.reset();
      }
    });
    raise_to_time_since(step_began_, longest_step_);
    step_began_ = StepClock::now();
  };
  hooks.stop_requested = [this] { return stop_requested(longest_step_ + longest_save_); };
  hooks.save = [this, &writer](std::int64_t step) {
    save_began_ = StepClock::now();
    save(writer, step);
  };
  return hooks;
}

bool TrainPhase::probe_ends(StepMetrics& metrics) {
  services_.clock.enter("probe of " + settings_.name);
  const bool ends = probe_->check(trainer_.store(), metrics);
  services_.clock.enter(settings_.name);
  last_step_ = ends ? metrics.step : settings_.steps;
  return ends;
}

void TrainPhase::save(CheckpointWriter& writer, std::int64_t step) {
  TrainerState state = trainer_.state();
  if (probe_ != nullptr) {
    state.early_stop = probe_->state();
  }
  on_disk([&] {
    save_training(writer,
                  {settings_.round, step, settings_.recorded_as, 0, settings_.identity,
                   with_trainer_state(settings_.cursors(last_step_), state)},
                  model_.table(), trainer_.optimizer());
  });
}

}  // namespace jforge
