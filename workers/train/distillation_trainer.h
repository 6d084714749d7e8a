#pragma once

/// The step loop of distillation (METHOD.md §4) and of plain autoregressive training. Read run()
/// top to bottom: take the batch's samples, forward and backward over micro-batches, agree,
/// optimizer step, report, checkpoint.

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

/// A plain sequence for pre-training: targets are tokens[first_target …].
struct CausalSample {
  std::vector<TokenId> tokens;
  std::int64_t first_target = 1;
};

using TrainingSample = std::variant<PackedSample, CausalSample>;

/// The samples of a round in training order; sample i of the order is the same on every rank and
/// after every restart.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  /// Samples in the order (epochs counted out).
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Rows the sample takes when packed, at most; > 0, cheap, equal on every rank. It decides who
  /// trains what. Asked before the first step alone, where a rank that throws stops all.
  [[nodiscard]] virtual std::int64_t length(std::int64_t index) const = 0;
  /// The sample. Called only on the rank that trains it; may throw DataError.
  [[nodiscard]] virtual TrainingSample sample(std::int64_t index) = 0;
};

/// Which steps to run.
struct TrainPlan {
  std::int64_t total_steps =
      0;  ///< Of the round. Step s uses samples [(s−1)·B, s·B) of the order, cut at its end.
  std::int64_t steps_done = 0;  ///< Resume after this many.
  std::int64_t checkpoint_every =
      0;                    ///< Steps between checkpoints; 0 = only at the end and on a stop.
  PeakFlops peak = {};      ///< What metrics' shares refer to.
  TrainerState state = {};  ///< As the trainer whose steps are done left it (state()).
};

/// What the caller does around the steps. Empty functions are skipped.
struct TrainHooks {
  /// Every rank, after every step; not collective. An exception stops all ranks at the next
  /// agreement.
  std::function<void(const StepMetrics&)> on_step;
  /// Collective, after the update of every step and before on_step: may add to its metrics. True
  /// when the round is to end with this step, which is then its last.
  std::function<bool(StepMetrics&)> probe;
  /// Collective, after every step: commit a checkpoint whose writing has ended
  /// (CheckpointWriter::poll).
  std::function<void()> at_boundary;
  /// Collective: save the state after `step` steps. Called every checkpoint_every steps, after the
  /// last step (also one that probe made the last) and on a stop; never twice for one step. The
  /// caller finishes the writer after run().
  std::function<void(std::int64_t step)> save;
  /// Whether this rank was asked to stop. Default: jforge::stop_requested.
  std::function<bool()> stop_requested;
  /// Told of progress at every micro-batch and step; layers note theirs (note_progress).
  PhaseClock* clock = nullptr;
};

enum class TrainOutcome : std::uint8_t { finished, interrupted };

/// What every rank brings along; all must outlive the trainer.
struct TrainContext {
  const TransformerConfig& model;
  const ParameterTable& table;  ///< shard_count = comm.size()
  KernelSet& kernels;
  const Communicator& comm;
  MemoryAccount& account;
};

/// One object per rank and round; all ranks construct and run it together.
class DistillationTrainer {
 public:
  /// Collective. `weights`: flat float32 [flat_size] on the host, the model to train, and what a
  /// frozen teacher is copied from: those of the round's beginning, also where a checkpoint is
  /// resumed afterwards. Unless keeps_own_weights() it is updated in place and must outlive the
  /// trainer. Throws ConfigError.
  DistillationTrainer(const TrainContext& context, TensorView weights, const TrainConfig& config);

  [[nodiscard]] ShardedAdamW& optimizer() noexcept { return optimizer_; }
  [[nodiscard]] ParameterStore& store() noexcept { return store_; }
  /// Whether the weights given were copied and may go: with sharded weights or another type, and on
  /// a device.
  [[nodiscard]] bool keeps_own_weights() const noexcept {
    return store_.sharding().copies_weights(context_.kernels.device());
  }

  /// Collective. Runs steps steps_done + 1 … total_steps, or fewer when any rank is asked to stop:
  /// then the running step is finished and saved first. An error on one rank is thrown on all,
  /// naming it. Throws ConfigError before the first step when a sample does not fit
  /// tokens_per_rank, a batch has fewer samples than ranks (unless allow_idle_ranks) or the order
  /// is too short; NumericalError when too many updates in a row were left out (spike_guard.h).
  [[nodiscard]] TrainOutcome run(SampleSource& source, const TrainPlan& plan,
                                 const TrainHooks& hooks);
  /// Whether run() has thrown while weights and moments were compared with what the last update
  /// left: nobody knows since when they are wrong. Alike on all ranks.
  [[nodiscard]] bool state_in_question() const noexcept { return optimizer_.state_in_question(); }
  /// What a checkpoint of this step holds beside weights and moments, and what the probe adds.
  [[nodiscard]] TrainerState state() const {
    return {.spike_guard = spike_guard_.state(), .early_stop = {}};
  }

 private:
  /// Gradient norms of the two loss terms; negative where not measured.
  struct TermNorms {
    double consistency = -1;
    double autoregressive = -1;
  };
  /// This rank's share of a step.
  struct LocalWork {
    VocabularyLossSums losses;
    double tokens = 0;
    double flops = 0;
    double kept_offsets = 0;
    double ar_targets = 0;
    double micro_batches = 0;
    double work_seconds = 0;
    double communication_seconds = 0;  ///< Of them: waited for collectives beside the arithmetic.
    std::uint64_t payload_bytes = 0;
    TermNorms norms;
  };

  /// Fills planned_lengths_.
  void check_plan(const SampleSource& source, const TrainPlan& plan);
  [[nodiscard]] LocalWork accumulate(SampleSource& source, std::int64_t step,
                                     const TrainHooks& hooks);
  /// Forwards and backwards of a step, equal on every rank. A rank with fewer micro-batches begins
  /// with empty ones, so that its gradients are reduced while its last is at work.
  struct Passes {
    std::int64_t count = 1;
    std::int64_t first_of_rank_0 = 0;  ///< That is not empty; `count` where rank 0 is idle.
  };
  /// Divides the batch over ranks and this rank's part into micro-batches.
  /// Does a failed step's collectives, for which the other ranks wait.
  void give_up_step(const FailureText& failure);
  [[nodiscard]] Passes divide_batch();
  [[nodiscard]] LocalWork train_batch(SampleSource& source, std::int64_t step, std::int64_t first,
                                      const Passes& passes, const TrainHooks& hooks);
  /// Leaves the squared gradient norms of both terms of batch_, whose forward is done, behind the
  /// losses of all passes in results_; false where the batch trains one term only.
  [[nodiscard]] bool measure_terms(const Passes& passes, const TeacherForward& teacher);
  /// Once the device has been waited for. Throws NumericalError when a loss is not finite.
  /// `measured_share`: of the batch's samples, 0 where nothing was measured.
  void read_results(std::int64_t step, double measured_share, LocalWork& work);
  /// In this step, on any rank.
  [[nodiscard]] bool norms_due(std::int64_t step) const;
  /// Adds to batch_.
  void build_batch(SampleSource& source, std::int64_t first,
                   const std::vector<std::size_t>& members, float sample_weight);
  /// The frozen teacher's forward for batch_; empty where the teacher is detached.
  [[nodiscard]] TeacherForward teach();
  /// Collective, between a step's passes and its update: makes the update, or leaves it out where
  /// the guard finds a spike.
  void update(LocalWork& work, StepMetrics& metrics);
  /// Collective. Of both losses, as metrics report it.
  [[nodiscard]] double weighted_loss(const VocabularyLossSums& own);
  /// Collective. Fills the sums over ranks; true when a stop arrived on any rank during the step.
  [[nodiscard]] bool gather_metrics(const LocalWork& work, double step_seconds, bool stop,
                                    PeakFlops& peak, StepMetrics& metrics);

  TrainContext context_;
  TrainConfig config_;
  PackingOptions packing_;
  std::unique_ptr<Collectives> collectives_;
  ParameterStore store_;
  ShardedAdamW optimizer_;
  TrainingTransformer transformer_;
  std::optional<TrainingTransformer> teacher_;  ///< Frozen.
  SpikeGuard spike_guard_;
  ResultSums results_;  ///< Of a step: two losses for each pass, two squared norms, two unused.
  std::exception_ptr hook_failure_;

  // Kept from step to step: a warm step allocates nothing but what the source's samples hold.
  /// Of all samples of run()'s plan, from sample first_planned_ on: a source that cannot tell one
  /// stops all ranks before the first step.
  std::vector<std::int64_t> planned_lengths_;
  std::int64_t first_planned_ = 0;
  std::vector<std::int64_t> lengths_;  ///< Of the step's.
  BatchDivision over_ranks_;
  BatchDivision micro_batches_;
  BatchDivision other_micro_batches_;
  std::vector<PackedSample> distilled_;
  std::vector<CausalSample> causal_;
  PackedBatch batch_;
  PackedBatch teacher_batch_;
  std::vector<std::int64_t> first_samples_;  ///< Of each pass, for messages.
  std::vector<double> gathered_;
  std::vector<double> gathered_losses_;
};

}  // namespace jforge
