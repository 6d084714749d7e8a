#pragma once

/// Training loop of distillation (METHOD.md §4) and autoregressive training; start with run().

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "data/batches/packed_sample.h"
#include "model/kernels/kernel_set.h"
#include "model/kernels/result_sums.h"
#include "model/transformer/packed_layout.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/training_transformer.h"
#include "model/transformer/transformer_config.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/comm/rank_grid.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/tensor/buffer.h"
#include "workers/train/batch_assignment.h"
#include "workers/train/parameter_store.h"
#include "workers/train/peak_flops.h"
#include "workers/train/sharded_adamw.h"
#include "workers/train/spike_guard.h"
#include "workers/train/train_config.h"
#include "workers/train/trainer_state.h"

namespace jforge {

/// Targets are tokens[first_target …].
struct CausalSample {
  std::vector<TokenId> tokens;
  std::int64_t first_target = 1;
};

using TrainingSample = std::variant<PackedSample, CausalSample>;

/// Samples in training order, the same on every rank and after every restart.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  /// Includes all epochs.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Maximum packed rows; > 0, cheap, equal on every rank, because it determines the division over
  /// ranks. Called before the first step only, where an exception stops all ranks.
  [[nodiscard]] virtual std::int64_t length(std::int64_t index) const = 0;
  /// Called only on the rank that trains the sample; may throw DataError.
  [[nodiscard]] virtual TrainingSample sample(std::int64_t index) = 0;
};

struct TrainPlan {
  std::int64_t total_steps = 0;  ///< Step s: samples [(s−1)·B, s·B) of the order, cut at its end.
  std::int64_t steps_done = 0;        ///< Resume after this step.
  std::int64_t checkpoint_every = 0;  ///< 0: only at the end and on a stop.
  PeakFlops peak = {};
  TrainerState state = {};  ///< After steps_done (state()).
};

/// Empty functions are skipped.
struct TrainHooks {
  /// Called on every rank after every step, not collectively. An exception stops all ranks at the
  /// next agreement.
  std::function<void(const StepMetrics&)> on_step;
  /// Collective, between update and on_step; may add metrics. True ends the round with this step.
  std::function<bool(StepMetrics&)> probe;
  /// Collective, after every step: commits a finished checkpoint.
  std::function<void()> at_boundary;
  /// Collective: saves the state after `step`, every checkpoint_every steps, at the end and on a
  /// stop, once per step. The caller finishes the writer.
  std::function<void(std::int64_t step)> save;
  /// Default: jforge::stop_requested.
  std::function<bool()> stop_requested;
  /// Gets progress at every micro-batch and step.
  PhaseClock* clock = nullptr;
};

enum class TrainOutcome : std::uint8_t { finished, interrupted };

/// A model that stays as it is, beside the drafter that is trained.
struct FrozenModel {
  const ParameterTable& table;
  ParameterSource& weights;  ///< Of the compute type, where the kernels compute.
};

/// References must outlive the trainer.
struct TrainContext {
  const TransformerConfig& model;
  /// The trained weights': the model's or the drafter's. shard_count = ranks of a copy of the
  /// state.
  const ParameterTable& table;
  KernelSet& kernels;
  const Communicator& comm;
  MemoryAccount& account;
  const RankGrid* grid = nullptr;          ///< Null: all ranks share one copy.
  std::optional<FrozenModel> frozen = {};  ///< Required if TrainConfig names a drafter.
};

/// One object per rank and round; all ranks act together.
class DistillationTrainer {
 public:
  /// Collective. `shard`: this rank's shard vector at the round's start; a frozen teacher comes
  /// from it. Without a teacher it may be empty if a checkpoint is resumed afterwards. Throws
  /// ConfigError.
  DistillationTrainer(const TrainContext& context, std::span<const float> shard,
                      const TrainConfig& config);

  [[nodiscard]] ShardedAdamW& optimizer() noexcept { return optimizer_; }
  [[nodiscard]] ParameterStore& store() noexcept { return store_; }

  /// Collective. Runs steps steps_done + 1 … total_steps. On a stop request of any rank, finishes
  /// and saves the current step and returns. An error on one rank is thrown on all, naming it.
  /// Throws ConfigError before the first step if a sample exceeds tokens_per_rank, a batch has
  /// fewer samples than ranks (unless allow_idle_ranks) or the order is too short; NumericalError
  /// after too many consecutive spikes (spike_guard.h).
  [[nodiscard]] TrainOutcome run(SampleSource& source, const TrainPlan& plan,
                                 const TrainHooks& hooks);
  /// Whether run() has thrown because weights or moments differ from those of the last update;
  /// since when is unknown. Equal on all ranks.
  [[nodiscard]] bool state_in_question() const noexcept { return optimizer_.state_in_question(); }
  /// Returns the state for checkpoints, without the probe's part.
  [[nodiscard]] TrainerState state() const {
    return {.spike_guard = spike_guard_.state(), .early_stop = {}};
  }

 private:
  /// Negative: not measured.
  struct TermNorms {
    double consistency = -1;
    double autoregressive = -1;
  };
  struct LocalWork {
    VocabularyLossSums losses;
    double tokens = 0;
    double flops = 0;
    double kept_offsets = 0;
    double ar_targets = 0;
    double micro_batches = 0;
    double work_seconds = 0;
    double communication_seconds = 0;  ///< Part of it: waits for overlapped collectives.
    std::uint64_t payload_bytes = 0;
    TermNorms norms;
  };

  void check_plan(const SampleSource& source, const TrainPlan& plan);
  [[nodiscard]] LocalWork accumulate(SampleSource& source, std::int64_t step,
                                     const TrainHooks& hooks);
  /// Equal on every rank. Ranks with fewer micro-batches start with empty ones, so that gradients
  /// are reduced during the last one.
  struct Passes {
    std::int64_t count = 1;
    std::int64_t first_of_rank_0 = 0;  ///< First non-empty one of rank 0; `count` if it has none.
  };
  void backward(std::int64_t pass, GradientSink& gradients, const TeacherForward& teacher);
  /// Joins a failed step's remaining collectives, for which other ranks wait.
  void give_up_step(const FailureText& failure);
  [[nodiscard]] Passes divide_batch();
  [[nodiscard]] LocalWork train_batch(SampleSource& source, std::int64_t step, std::int64_t first,
                                      const Passes& passes, const TrainHooks& hooks);
  /// Writes the squared gradient norms of both loss terms of batch_, after its forward, to results_
  /// following the losses. False if the batch trains only one term.
  [[nodiscard]] bool measure_terms(const Passes& passes, const TeacherForward& teacher);
  /// Requires a synchronized device. Throws NumericalError if a loss is not finite.
  /// `measured_share`: measured share of the batch's samples.
  void read_results(std::int64_t step, double measured_share, LocalWork& work);
  /// True on all ranks if any rank measures norms.
  [[nodiscard]] bool norms_due(std::int64_t step) const;
  void build_batch(SampleSource& source, std::int64_t first,
                   const std::vector<std::size_t>& members, float sample_weight);
  void forward_batch();
  [[nodiscard]] double pass_flops() const;
  /// Replaces the noise of some of batch_'s samples, `first` + `members` in the order, by what the
  /// adapter proposes after its forward. False if there are none.
  [[nodiscard]] bool propose_noise(std::int64_t first, const std::vector<std::size_t>& members);
  /// The frozen teacher's forward for batch_; empty if detached.
  [[nodiscard]] TeacherForward teach();
  /// Collective. Updates, or skips the update of a spike.
  void update(LocalWork& work, StepMetrics& metrics);
  /// Collective.
  [[nodiscard]] double weighted_loss(const VocabularyLossSums& own);
  [[nodiscard]] std::uint64_t bytes_sent() const;
  [[nodiscard]] double waited_seconds() const;
  /// Collective. True if any rank was asked to stop during the step.
  [[nodiscard]] bool gather_metrics(const LocalWork& work, double step_seconds, bool stop,
                                    PeakFlops& peak, StepMetrics& metrics);

  TrainContext context_;
  TrainConfig config_;
  std::optional<HeadShape> head_;  ///< If that is trained.
  const LayerPlan plan_;           ///< Of the model, for FLOPs.
  PackingOptions packing_;
  std::unique_ptr<Collectives> collectives_;
  std::unique_ptr<Collectives> across_;  ///< Null with one copy of the state.
  ParameterStore store_;
  ShardedAdamW optimizer_;
  TrainingTransformer transformer_;
  /// The frozen teacher, or the frozen model beside a head.
  std::optional<TrainingTransformer> teacher_;
  std::optional<FrozenForward> model_forward_;  ///< Beside a head, of batch_.
  SpikeGuard spike_guard_;
  ResultSums results_;  ///< Per step: two losses per pass, two squared norms, two unused.
  std::exception_ptr hook_failure_;

  // Reused, so that a warm step allocates nothing but the source's samples.
  /// Lengths of run()'s samples, starting with first_planned_.
  std::vector<std::int64_t> planned_lengths_;
  std::int64_t first_planned_ = 0;
  std::vector<std::int64_t> lengths_;
  BatchDivision over_ranks_;
  BatchDivision micro_batches_;
  BatchDivision other_micro_batches_;
  std::vector<PackedSample> distilled_;
  std::vector<CausalSample> causal_;
  std::vector<TokenId> proposals_;
  std::vector<RowRange> noisy_;
  PackedBatch batch_;
  PackedBatch teacher_batch_;
  std::vector<std::int64_t> first_samples_;  ///< Per pass, for messages.
  std::vector<double> gathered_;
  std::vector<double> gathered_losses_;
};

}  // namespace jforge
