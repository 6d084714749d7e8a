#pragma once

/// What the surroundings offer the phases of a job.

#include <cstdint>
#include <functional>

#include "model/kernels/kernel_set.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/rank_grid.h"
#include "runtime/tensor/buffer.h"

namespace jforge {

class ControlChannel;
struct EvaluationProgress;
struct ImportProgress;
struct StepMetrics;

/// What a phase computes on and reports to. All must outlive it.
struct PhaseServices {
  const Communicator& comm;
  KernelSet& kernels;
  PhaseClock& clock;
  const RankGrid& grid;

  /// Ends a phase: releases the kernels' work space and logs the peaks of `account`. Requires:
  /// every byte charged to `account` has been returned (ARCHITECTURE.md "phase switch").
  void end_phase(const MemoryAccount& account) const;
};

/// Services of a whole job. All must outlive it; callbacks may be empty.
struct WorkerServices : PhaseServices {
  ControlChannel& control;
  /// Called on every rank after a training step, with the round and its number of steps.
  std::function<void(std::int32_t round, std::int64_t steps, const StepMetrics&)> on_step = {};
  /// Called on every rank during generation, after each forward, prompt, lease and lease answer.
  std::function<void()> on_prompt = {};
  /// Called on every rank after each evaluated problem.
  std::function<void(const EvaluationProgress&)> on_evaluation = {};
  /// Called on rank 0 during the import.
  std::function<void(const ImportProgress&)> on_import = {};
};

}  // namespace jforge
