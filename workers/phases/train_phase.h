#pragma once

/// Training with checkpoints written beside it: a round's, `pretrain`'s and `finetune`'s.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/checkpoint_writer.h"
#include "checkpoints/identity.h"
#include "model/transformer/flat_parameters.h"
#include "workers/model_shard.h"
#include "workers/phases/services.h"
#include "workers/run_layout.h"
#include "workers/train/distillation_trainer.h"

namespace jforge {

class TrainingProbe;

/// One object per training; all methods but trainer() are collective.
class TrainPhase {
 public:
  struct Settings {
    std::string name;         ///< In the log and for the clock: "train round 1", "pretrain".
    std::string recorded_as;  ///< CheckpointState::phase.
    std::int32_t round = 0;   ///< 0: no round's.
    std::int64_t steps = 0;   ///< In all, also those done before a resume.
    RunLayout layout;
    CheckpointConfig checkpoint;
    Identity identity;
    /// Returns the cursors of a checkpoint, a JSON object, of a training that `last_step` ends.
    std::function<std::string(std::int64_t last_step)> cursors;
  };

  /// Collective. Takes the weights out of `model`; if dropped before, resume() must follow. `base`:
  /// the frozen model, if `model` is an adapter. All but `settings` must outlive the phase; memory
  /// is charged to `account`.
  TrainPhase(const PhaseServices& services, ModelShard& model, const TrainConfig& config,
             Settings settings, MemoryAccount& account, const ModelShard* base = nullptr);

  [[nodiscard]] DistillationTrainer& trainer() noexcept { return trainer_; }

  /// Checks the model with `probe`, which must outlive run(), after every step.
  void check_with(TrainingProbe& probe) noexcept { probe_ = &probe; }
  /// Takes moments and update count from `checkpoint`, of an earlier training.
  void carry_optimizer(const Checkpoint& checkpoint);
  /// Continues this training from `checkpoint`.
  void resume(const Checkpoint& checkpoint);

  /// Trains to the last step, to the step at which the probe ends the training, or to a stop. The
  /// state after the last step is durable when it returns. If training fails on all ranks alike,
  /// the checkpoint in progress is committed first, because the user will go back to it, unless the
  /// copied state is in question.
  [[nodiscard]] TrainOutcome run(SampleSource& samples,
                                 const std::function<void(const StepMetrics&)>& on_step);

 private:
  [[nodiscard]] std::optional<FrozenModel> freeze(const ModelShard* base);
  [[nodiscard]] bool probe_ends(StepMetrics& metrics);
  [[nodiscard]] TrainHooks hooks(CheckpointWriter& writer,
                                 const std::function<void(const StepMetrics&)>& on_step);
  void save(CheckpointWriter& writer, std::int64_t step);
  void finish_after_failure(CheckpointWriter& writer);
  template <class Work>
  void on_disk(const Work& work) {
    services_.clock.enter("checkpoint");
    work();
    services_.clock.enter(settings_.name);
  }

  PhaseServices services_;
  ModelShard& model_;
  const TrainConfig config_;
  const Settings settings_;
  MemoryAccount& account_;
  Buffer frozen_memory_;
  std::optional<FlatParameters> frozen_;
  DistillationTrainer trainer_;
  TrainPlan plan_;
  TrainingProbe* probe_ = nullptr;
  std::int64_t last_step_;  ///< The step that ends the training, as far as is known.
  /// Measured in this start, in seconds, so that a stop at a given time comes early enough.
  double longest_step_ = 0;
  double longest_save_ = 0;  ///< Until the checkpoint is committed.
  std::chrono::steady_clock::time_point step_began_;
  std::optional<std::chrono::steady_clock::time_point> save_began_;
};

}  // namespace jforge
