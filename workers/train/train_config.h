#pragma once

/// Settings of a training phase ([train] of the configuration) and what one step reports.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "model/transformer/packed_layout.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/ids.h"
#include "workers/train/collapse.h"
#include "workers/train/early_stop.h"
#include "workers/train/learning_rate_schedule.h"
#include "workers/train/sample_filter.h"
#include "workers/train/sharded_adamw.h"
#include "workers/train/spike_guard.h"

namespace jforge {

/// Whose formulas to follow where the paper and its authors' code disagree (METHOD.md §4).
enum class Compat : std::uint8_t { none, repo, paper };

/// Whose logits at the clean rows teach (METHOD.md §4).
enum class TeacherKind : std::uint8_t {
  detached,  ///< The student's own of the same forward, without gradient.
  frozen,    ///< Those of the weights that the round began with: the trajectories' model.
};

/// More are a slip of the finger, and beyond what can be counted or held.
inline constexpr std::int64_t kMostBatchSamples = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostSteps = 1'000'000'000;  ///< Of a round or a training.
inline constexpr std::int64_t kMostEpochs = 1'000'000;     ///< Likewise.

struct TrainConfig {
  double learning_rate = 4e-6;    ///< Peak.
  double minimum_rate_ratio = 0;  ///< The cosine ends at learning_rate · this.
  double warmup_ratio = 0.03;
  std::int64_t batch_samples = 64;  ///< Samples of a global batch, over all ranks.
  std::int64_t tokens_per_rank =
      16384;            ///< Packed rows of one micro-batch, at most; every sample must fit.
  float ar_weight = 1;  ///< Loss = consistency_weight · L_pc + ar_weight · L_AR.
  float consistency_weight = 1;  ///< 0 is the SFT control: noisy blocks are not even forwarded.
  MaskKind mask = MaskKind::noise;
  LossReduction reduction = LossReduction::token_mean;
  KeptOffsets kept = KeptOffsets::from_first_difference;
  float consistency_decay = 1;  ///< γ of PackingOptions.
  TeacherKind teacher = TeacherKind::detached;
  ArLoss ar_loss = ArLoss::cross_entropy;
  bool train_prompt = false;
  bool activation_checkpointing = false;
  /// Of compute weights and activations: float32 or bfloat16. Masters, moments, gradients of
  /// parameters, losses and sums are float32.
  DType compute = DType::float32;
  CollectivesChoice collectives = CollectivesChoice::automatic;
  bool allow_idle_ranks = false;  ///< Accept batches of fewer samples than ranks.
  /// Steps between measurements of both loss terms' gradient norms (first at step 1); 0 = never.
  /// One costs two more backward passes over one micro-batch of rank 0 (at stage 3 of every rank).
  std::int64_t gradient_norms_every = 100;
  OptimizerConfig optimizer;
  SpikeGuardConfig spike_guard;
  CollapseConfig collapse;     ///< What the caller's probe does (workers/training_probe.h).
  EarlyStopConfig early_stop;  ///< Likewise.
  SampleFilterConfig filter;   ///< What TrajectorySamples leaves out.

  /// Sets the fields that a compatibility mode fixes: repo: reduction = repo, kept from the first
  /// difference, prompt trained; paper: reduction = paper, all offsets kept, prompt not trained;
  /// both: teacher detached and consistency_decay 1.
  void apply(Compat compat);
  /// Throws ConfigError naming the key and the way out.
  void validate() const;
  [[nodiscard]] PackingOptions packing(const std::vector<TokenId>& eos_ids) const;
  [[nodiscard]] LearningRateSchedule schedule(std::int64_t total_steps) const;
  /// consistency_weight · L_pc + ar_weight · L_AR
  [[nodiscard]] double weighted(const VocabularyLossSums& losses) const {
    return static_cast<double>(consistency_weight) * losses.consistency +
           static_cast<double>(ar_weight) * losses.autoregressive;
  }
  [[nodiscard]] Sharding sharding() const {
    return {.stage = optimizer.zero_stage,
            .compute = compute,
            .teacher = teacher == TeacherKind::frozen,
            .offload = optimizer.offload};
  }
};

/// Figures of one optimizer step; equal on every rank.
struct StepMetrics {
  std::int64_t step = 0;      ///< 1-based; updates made so far in this round.
  double loss = 0;            ///< consistency_weight · consistency + ar_weight · autoregressive
  double consistency = 0;     ///< L_pc, unweighted, mean over the samples of the batch.
  double autoregressive = 0;  ///< L_AR, unweighted, mean over the samples of the batch.
  double gradient_norm = 0;   ///< Before clipping.
  /// Norms of the gradients of consistency_weight · L_pc and of ar_weight · L_AR alone, each the
  /// mean over the samples of rank 0's first micro-batch. Absent when not measured in this step, or
  /// when that micro-batch trains one of the two only.
  std::optional<double> consistency_gradient_norm;
  std::optional<double> ar_gradient_norm;
  double clip_scale = 1;
  bool skipped = false;            ///< A spike: the update was left out (spike_guard.h).
  std::int64_t skipped_steps = 0;  ///< Such steps of the round so far.
  /// What the guard compared loss or gradient norm with; absent where it does not.
  std::optional<double> spike_reference;
  double learning_rate = 0;
  /// Of greedy answers with the weights after this step, where it was checked: mean seq-rep-4 and
  /// distinct-1 (collapse.h), tokens per forward and share of right answers on held-out problems.
  std::optional<double> repetition;
  std::optional<double> distinct;
  std::optional<double> held_out_tpf;
  std::optional<double> held_out_accuracy;
  /// Trajectories of the round that cleaning leaves out; absent where nothing is to be.
  std::optional<std::int64_t> filtered;
  std::int64_t samples = 0;        ///< In the global batch.
  std::int64_t tokens = 0;         ///< Packed rows forwarded, all ranks.
  std::int64_t kept_offsets = 0;   ///< Consistency targets, all ranks.
  std::int64_t ar_targets = 0;     ///< All ranks.
  std::int64_t micro_batches = 0;  ///< The most any rank had.
  double milliseconds = 0;         ///< Slowest rank's time for the whole step.
  double tokens_per_second = 0;
  /// Of them: the longest that a rank waited for gradients or weights that were on their way beside
  /// the arithmetic, the waiting for slower ranks included.
  double communication_milliseconds = 0;
  std::int64_t payload_bytes = 0;  ///< That all ranks sent for gradients and weights.
  std::optional<double> mfu;       ///< Share of the peak, at most 1; absent where none is known.
  Rank slowest_rank = 0;           ///< Whose forward and backward took longest …
  double straggler_ratio = 1;      ///< … and how long against the mean of all ranks.
};

/// Returns a warning if the measured gradient norm of the consistency term is more than
/// kMaxGradientRatio times that of the AR term: such weights can cost a model its answers. Never at
/// step 1, where the answers are the model's own and the AR gradient is close to zero.
inline constexpr double kMaxGradientRatio = 10;
[[nodiscard]] std::optional<std::string> unbalanced_gradients(const StepMetrics& metrics);

}  // namespace jforge
