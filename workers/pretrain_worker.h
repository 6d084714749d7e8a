#pragma once

/// Pre-training: a small base model from question–answer pairs, by the trainer that distils.

#include <functional>

#include "checkpoints/identity.h"
#include "model/kernels/kernel_set.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "workers/pretrain_config.h"
#include "workers/resume_choice.h"
#include "workers/train/train_config.h"

namespace jforge {

/// What the surroundings offer. All must outlive the call.
struct PretrainServices {
  const Communicator& comm;
  KernelSet& kernels;
  PhaseClock& clock;
  /// Called on every rank after a training step.
  std::function<void(const StepMetrics&)> on_step;
};

/// Configuration keys of kind identity are in `identity` already; this adds the hashes of tokenizer
/// and data. Collective: rank 0 reads, all ranks get them. Throws DataError.
void identify_pretraining(const Communicator& comm, const PretrainSettings& settings,
                          Identity& identity);

/// Collective. Trains from the checkpoint that `choice` means, or from fresh weights, and writes
/// the model to pretrain.output (bfloat16). Returns false when a stop was requested: what must be
/// durable is. Throws ConfigError when the checkpoint's identity differs in more than `accepted`.
[[nodiscard]] bool pretrain(const PretrainConfig& config, const PretrainServices& services,
                            const Identity& identity, const ResumeChoice& choice,
                            const AcceptedChanges& accepted);

}  // namespace jforge
