#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "model/transformer/drafter.h"
#include "model/transformer/packed_layout.h"
#include "model/transformer/training_transformer.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/ids.h"
#include "workers/train/collapse.h"
#include "workers/train/early_stop.h"
#include "workers/train/learning_rate_schedule.h"
#include "workers/train/sample_filter.h"
#include "workers/train/sharded_adamw.h"
#include "workers/train/spike_guard.h"

namespace jforge {

/// Formulas to use if the paper and its authors' code disagree (METHOD.md §4).
enum class Compat : std::uint8_t { none, repo, paper };

/// Source of the logits at clean rows that teach (METHOD.md §4).
enum class TeacherKind : std::uint8_t {
  detached,  ///< The student's of the same forward, without gradient.
  frozen,    ///< The student's at the round's start, which made the trajectories.
};

/// What a run trains.
enum class Drafter : std::uint8_t {
  none,     ///< The model.
  adapter,  ///< Additions of drafting rows (model/transformer/drafter.h); the model stays as it is.
  head,     ///< Layers that read the model's features; the model stays as it is, too.
};

/// Sanity limits.
inline constexpr std::int64_t kMostBatchSamples = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostSteps = 1'000'000'000;
inline constexpr std::int64_t kMostEpochs = 1'000'000;

struct TrainConfig {
  double learning_rate = 4e-6;    ///< Peak.
  double minimum_rate_ratio = 0;  ///< Final rate / learning_rate.
  double warmup_ratio = 0.03;
  std::int64_t batch_samples = 64;       ///< Global batch.
  std::int64_t tokens_per_rank = 16384;  ///< Maximum rows of a micro-batch; every sample must fit.
  float ar_weight = 1;                   ///< Loss: consistency_weight · L_pc + ar_weight · L_AR.
  float consistency_weight = 1;          ///< 0: SFT control; noisy blocks are not forwarded.
  MaskKind mask = MaskKind::noise;
  LossReduction reduction = LossReduction::token_mean;
  KeptOffsets kept = KeptOffsets::from_first_difference;
  float consistency_decay = 1;  ///< γ of PackingOptions.
  TeacherKind teacher = TeacherKind::detached;
  ArLoss ar_loss = ArLoss::cross_entropy;
  bool train_prompt = false;
  Drafter drafter = Drafter::none;
  AdapterShape adapter;  ///< If that is the drafter.
  HeadShape head;        ///< Likewise.
  /// Share of samples whose noise is what the adapter proposed in a forward just before, which
  /// costs one; their choice is of `proposals_seed`.
  double own_proposals = 0;
  std::uint64_t proposals_seed = 0;
  bool activation_checkpointing = false;
  /// Compute weights and activations: float32 or bfloat16. Masters, moments, parameter gradients,
  /// losses and sums are float32.
  DType compute = DType::float32;
  CollectivesChoice collectives = CollectivesChoice::automatic;
  bool allow_idle_ranks = false;  ///< Allow fewer samples than ranks in a batch.
  /// Steps between measurements of both terms' gradient norms, first at step 1; 0: never. Costs two
  /// backward passes over one micro-batch of rank 0 (stage 3: of every rank).
  std::int64_t gradient_norms_every = 100;
  OptimizerConfig optimizer;
  int shard_ranks = 0;  ///< Ranks per copy of the state (runtime/comm/rank_grid.h); 0: all.
  SpikeGuardConfig spike_guard;
  CollapseConfig collapse;     ///< For the probe (workers/training_probe.h).
  EarlyStopConfig early_stop;  ///< For the probe.
  SampleFilterConfig filter;   ///< For TrajectorySamples.

  /// repo: reduction = repo, kept from the first difference, prompt trained; paper: reduction =
  /// paper, all offsets kept, prompt not trained; both: teacher detached, consistency_decay = 1.
  void apply(Compat compat);
  /// Throws ConfigError naming the key and a remedy.
  void validate() const;
  /// Both without what a head takes from its model.
  [[nodiscard]] PackingOptions packing(const std::vector<TokenId>& eos_ids) const;
  [[nodiscard]] TrainingTransformer::Options transformer_options() const;
  /// Returns the table of the trained weights.
  [[nodiscard]] ParameterTable table(const TransformerConfig& model, int shard_count) const {
    const std::optional<DrafterShape> shape = drafter_shape();
    return shape ? ParameterTable(model, *shape, shard_count) : ParameterTable(model, shard_count);
  }
  /// The same with a head's defaults for `model`.
  [[nodiscard]] std::optional<DrafterShape> drafter_shape(const TransformerConfig& model) const {
    return drafter == Drafter::head ? DrafterShape(completed(head, model)) : drafter_shape();
  }
  /// Returns the shape of the drafter that is trained; nothing if it is the model.
  [[nodiscard]] std::optional<DrafterShape> drafter_shape() const {
    switch (drafter) {
      case Drafter::none:
        break;
      case Drafter::adapter:
        return adapter;
      case Drafter::head:
        return head;
    }
    return std::nullopt;
  }
  [[nodiscard]] LearningRateSchedule schedule(std::int64_t total_steps) const;
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

/// Equal on every rank.
struct StepMetrics {
  std::int64_t step = 0;  ///< 1-based, within the round.
  double loss = 0;
  double consistency = 0;     ///< L_pc, unweighted mean over the batch's samples.
  double autoregressive = 0;  ///< L_AR, likewise.
  double gradient_norm = 0;   ///< Before clipping.
  /// Gradient norms of consistency_weight · L_pc and ar_weight · L_AR, means over the samples of
  /// rank 0's first micro-batch. Absent if not measured or if it trains only one term.
  std::optional<double> consistency_gradient_norm;
  std::optional<double> ar_gradient_norm;
  double clip_scale = 1;
  bool skipped = false;            ///< Spike (spike_guard.h).
  std::int64_t skipped_steps = 0;  ///< In the round.
  /// Compared with the measure by the spike guard.
  std::optional<double> spike_reference;
  double learning_rate = 0;
  /// From greedy answers after this step, if checked: mean seq-rep-4, distinct-1 (collapse.h),
  /// tokens per forward and accuracy on held-out problems.
  std::optional<double> repetition;
  std::optional<double> distinct;
  std::optional<double> held_out_tpf;
  std::optional<double> held_out_accuracy;
  /// Trajectories dropped by cleaning, if active.
  std::optional<std::int64_t> filtered;
  std::int64_t samples = 0;        ///< Global batch.
  std::int64_t tokens = 0;         ///< Packed rows forwarded, all ranks.
  std::int64_t kept_offsets = 0;   ///< Consistency targets, all ranks.
  std::int64_t ar_targets = 0;     ///< All ranks.
  std::int64_t micro_batches = 0;  ///< Maximum over ranks.
  double milliseconds = 0;         ///< Slowest rank, whole step.
  double tokens_per_second = 0;
  /// Longest wait of a rank for overlapped collectives and slower ranks.
  double communication_milliseconds = 0;
  std::int64_t payload_bytes = 0;  ///< All ranks, gradients and weights.
  std::optional<double> mfu;       ///< ≤ 1; absent if unknown.
  Rank slowest_rank = 0;           ///< Longest forward and backward.
  double straggler_ratio = 1;      ///< Its time / mean over ranks.
};

/// Warns if the consistency term's gradient norm exceeds kMaxGradientRatio times the AR term's,
/// because such weights can cost a model its answers. Never at step 1: the answers are the model's
/// own, so the AR gradient is near zero.
inline constexpr double kMaxGradientRatio = 10;
[[nodiscard]] std::optional<std::string> unbalanced_gradients(const StepMetrics& metrics);

}  // namespace jforge
