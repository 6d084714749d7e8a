#pragma once

/// Training with checkpoints written beside it, to its end or its failure.

#include <exception>

#include "checkpoints/checkpoint_writer.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "workers/train/distillation_trainer.h"

namespace jforge {

/// Collective. trainer.run(); then, by way of `on_disk(work)`, what `writer` has begun is
/// committed. So it is where training fails on all ranks alike, since the user will go back to it,
/// but not where the state is in question that was copied.
template <class OnDisk>
TrainOutcome train_and_commit(DistillationTrainer& trainer, SampleSource& samples,
                              const TrainPlan& plan, const TrainHooks& hooks,
                              CheckpointWriter& writer, const OnDisk& on_disk) {
  TrainOutcome outcome = TrainOutcome::interrupted;
  try {
    outcome = trainer.run(samples, plan, hooks);
  } catch (const Error& failure) {
    if (failure.on_all_ranks() && !trainer.state_in_question()) {
      on_disk([&] {
        try {
          writer.finish();
        } catch (const std::exception& error) {
          spdlog::error("the checkpoint that was being written is lost: {}", error.what());
        }
      });
    }
    throw;
  }
  on_disk([&] { writer.finish(); });
  return outcome;
}

}  // namespace jforge
