#pragma once

/// The distillation of one round.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "checkpoints/identity.h"
#include "data/prompts/prompt_store.h"
#include "data/tasks/task.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "workers/job_config.h"
#include "workers/phases/round_weights.h"
#include "workers/phases/services.h"
#include "workers/phases/train_phase.h"
#include "workers/run_layout.h"
#include "workers/train/trajectory_samples.h"
#include "workers/training_probe.h"

namespace jforge {

/// Constructor and run() are collective, after RoundWeights::begin_round. Memory is charged to
/// `account` and given back with the object.
class RoundTraining {
 public:
  /// Loads the round's weights and opens its trajectories. All arguments must outlive the object.
  /// Throws ConfigError if the round was resumed and has no step left.
  RoundTraining(const JobConfig& config, const WorkerServices& services, const RunLayout& layout,
                const Identity& identity, RoundWeights& weights, std::int32_t round,
                MemoryAccount& account);

  /// Trains the round. If it is finished, RoundWeights has its weights.
  [[nodiscard]] TrainOutcome run();

 private:
  [[nodiscard]] ModelShard& load_weights();
  void expect_steps_left() const;
  void open_trajectories();
  void record_cleaning() const;
  [[nodiscard]] TrainPhase::Settings settings(const Identity& identity) const;
  void make_probe();
  void restore();
  void report(StepMetrics metrics);
  void keep_weights();

  const JobConfig& config_;
  const WorkerServices& services_;
  const RunLayout& layout_;
  RoundWeights& weights_;
  const std::int32_t round_;
  MemoryAccount& account_;
  const TrainConfig train_;
  const bool mid_round_;
  ModelShard& model_;
  const PromptStore prompts_;
  const std::int64_t steps_;
  bool warned_ = false;  ///< About unbalanced gradients.
  std::optional<BytePairTokenizer> tokenizer_;
  std::unique_ptr<Task> check_;
  std::optional<TrajectorySamples> samples_;
  std::optional<TrainPhase> phase_;
  std::optional<TrainingProbe> probe_;
};

}  // namespace jforge
