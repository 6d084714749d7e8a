#pragma once

/// The configuration of a whole job: the sum of its components' settings, with defaults and one
/// validate().

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoints/checkpoint_writer.h"
#include "data/batches/noise_schedule.h"
#include "data/batches/sample_order.h"
#include "data/prompts/prompt_import.h"
#include "model/kernels/device_choice.h"
#include "model/kernels/kernel_set.h"
#include "model/transformer/transformer_config.h"
#include "runtime/ids.h"
#include "workers/evaluate/evaluate_config.h"
#include "workers/evaluate/sweep.h"
#include "workers/generate/generate_config.h"
#include "workers/train/train_config.h"

namespace jforge {

enum class ComputeType : std::uint8_t {
  float32,
  bfloat16,
  automatic,  ///< By the device (ModelSettings::choose_for); float32 until that is known.
};

[[nodiscard]] constexpr DType dtype_of(ComputeType type) noexcept {
  return type == ComputeType::bfloat16 ? DType::bfloat16 : DType::float32;
}

/// [run]
struct RunSettings {
  std::filesystem::path directory;
  std::uint64_t seed = 42;
  double heartbeat_limit_seconds = 60;  ///< A rank silent for longer ends the job.
  double hang_limit_seconds =
      600;                   ///< A named phase without progress for longer ends the rank (exit 70).
  double stop_seconds = 20;  ///< Running answers may go on for so long after a stop.

  /// Throws ConfigError naming the key.
  void validate() const;
};

/// [model]
struct ModelSettings {
  std::filesystem::path source;  ///< Hugging Face directory.
  ComputeType compute = ComputeType::automatic;
  DeviceChoice device = DeviceChoice::automatic;
  WeightStorage decode_weights = WeightStorage::automatic;  ///< Generation and evaluation.
  ComputeType export_as = ComputeType::bfloat16;            ///< Type of the exported weights.

  /// Gives `compute` its type on `device`, if it is automatic: bfloat16 on CUDA, else float32.
  /// Where that is bfloat16 on CUDA, automatic decode_weights become bfloat16_arithmetic.
  /// Throws ConfigError if that device cannot decode with decode_weights.
  void choose_for(Device used);
  [[nodiscard]] bool multiplies_bfloat16() const noexcept {
    return compute == ComputeType::bfloat16 || decode_weights == WeightStorage::bfloat16_arithmetic;
  }
};

/// A name for a group of settings, for configurations, tables and pages (JobConfig::apply_recipe).
enum class Recipe : std::uint8_t {
  none,            ///< The keys as they are given.
  jacobi_forcing,  ///< The paper's: noisy context, linear schedule.
  authors,         ///< The formulas of the authors' code, with the AR weight of their checkpoints.
  clean_context,   ///< Clean context, random schedule, weights that fall along a block.
};

/// Where a round's optimizer state comes from.
enum class OptimizerStart : std::uint8_t {
  fresh,  ///< Moments of zero.
  carry,  ///< Moments and update count of the checkpoint that ended the round before.
};

/// [[rounds]]
struct RoundSettings {
  std::int32_t block_size = 16;
  std::int32_t noise_window = 16;
  ScheduleKind schedule = ScheduleKind::linear;
  bool drop_initial_state = false;
  MaskKind mask = MaskKind::noise;
  std::optional<double> epochs;  ///< Over the round's trajectories. Excludes `steps`.
  std::optional<std::int64_t> steps;
  std::optional<double> learning_rate;  ///< Instead of train.learning_rate.
  OptimizerStart optimizer = OptimizerStart::fresh;
};

struct JobConfig {
  RunSettings run;
  ModelSettings model;
  PromptImportConfig prompts;
  GenerateConfig generate;
  std::vector<RoundSettings> rounds;
  Recipe recipe = Recipe::jacobi_forcing;
  Compat compat = Compat::none;
  TrainConfig train;
  CheckpointConfig checkpoint;
  EvaluateConfig evaluate;
  SweepConfig sweep;               ///< For `jforge sweep` alone, which validates it.
  std::pair<int, int> part{1, 1};  ///< No key. The share of prompts_of_round(): the K-th of N.

  /// Throws ConfigError naming the key. `ranks`: world size, for batch checks.
  void validate(int ranks) const;
  /// Sets the fields that `recipe` fixes:
  ///  - jacobi_forcing: mask noise, schedule linear over 256 tokens (a window of 16 blocks of 16, 8
  ///    of 32), our formulas, consistency_decay 1;
  ///  - authors: compat repo with ar_weight 1, mask noise, schedule linear over 16 blocks;
  ///  - clean_context: mask clean, schedule random, our formulas, consistency_decay 0.8.
  void apply_recipe();
  /// Noise schedule of round `round` (1-based). By `compat`: paper: exclusive endpoint,
  /// positionwise measure, ceil_count target; else inclusive, prefix, ratio; repo: never the
  /// initial draft.
  [[nodiscard]] NoiseScheduleOptions noise_schedule(std::int32_t round) const;
  /// Training settings of round `round`: [train] with the round's own mask and learning rate.
  [[nodiscard]] TrainConfig train_config(std::int32_t round) const;
  /// Tokens that an answer of `round` may have: generate.max_new_tokens in whole blocks.
  [[nodiscard]] std::int64_t answer_tokens(const RoundSettings& round) const;
  /// Positions that `round` needs for prompts of at most `longest_prompt` tokens and their answers.
  /// Throws ConfigError if the model `trained` has fewer, or if a sample takes more rows than
  /// train.tokens_per_rank.
  [[nodiscard]] std::int64_t required_positions(const RoundSettings& round,
                                                std::int64_t longest_prompt,
                                                const TransformerConfig& trained) const;
  /// Equal for every round.
  [[nodiscard]] Sharding sharding() const;
  /// The order of round `round`'s samples if `num_prompts` prompts are imported; they are the
  /// prompts' numbers.
  [[nodiscard]] SampleOrderOptions sample_order(std::int32_t round, std::int64_t num_prompts) const;
  /// Steps that round `round` trains on them. Throws ConfigError if they are too few for a step.
  [[nodiscard]] std::int64_t total_steps(std::int32_t round, std::int64_t num_prompts) const;
  /// The prompts among them that round `round` trains on, in order of first use; of these every
  /// N-th if there are parts.
  [[nodiscard]] std::vector<PromptId> prompts_of_round(std::int32_t round,
                                                       std::int64_t num_prompts) const;
};

}  // namespace jforge
