#include "workers/train/train_config.h"

#include <fmt/format.h>

#include <cmath>

#include "runtime/error.h"

namespace jforge {

namespace {

void expect_positive(const char* key, double value) {
  if (!(value > 0) || !std::isfinite(value)) {
    throw ConfigError(fmt::format("train.{} = {} must be positive", key, value));
  }
}

void expect_not_negative(const char* key, double value) {
  if (!(value >= 0) || !std::isfinite(value)) {
    throw ConfigError(fmt::format("train.{} = {} must not be negative", key, value));
  }
}

void expect_ratio(const char* key, double value) {
  if (!(value >= 0 && value <= 1)) {
    throw ConfigError(fmt::format("train.{} = {} must lie in [0, 1]", key, value));
  }
}

/// Throws for what a frozen model has no use for.
void expect_drafter_alone(const TrainConfig& config) {
  const auto refuse_unless = [](bool fits, const char* key, const char* value, const char* why) {
    if (!fits) {
      throw ConfigError(fmt::format(
          "train.drafter leaves the model as it is, so {}; set train.{} = {}", why, key, value));
    }
  };
  refuse_unless(config.ar_weight == 0, "ar_weight", "0", "its answers need no loss");
  refuse_unless(config.teacher == TeacherKind::detached, "teacher", "\"detached\"",
                "it is its own teacher");
  refuse_unless(!config.train_prompt, "train_prompt", "false", "prompts teach nothing");
  refuse_unless(config.optimizer.zero_stage <= 1, "zero_stage", "0 or 1",
                "only small weights could be sharded");
  refuse_unless(config.collapse.check_every == 0, "collapse_check_every", "0",
                "its answers cannot collapse");
  refuse_unless(config.early_stop.every == 0, "early_stop_every", "0",
                "its answers stay as good as they are");
  expect_ratio("drafter_proposals", config.own_proposals);
  if (config.adapter.rank < 1 || !(config.adapter.alpha > 0) || config.adapter.targets.empty()) {
    throw ConfigError(
        "train.drafter_rank and train.drafter_alpha must be positive, and train.drafter_targets "
        "must name a projection");
  }
  if (config.drafter == Drafter::head && config.own_proposals > 0) {
    throw ConfigError(
        "train.drafter_proposals is an adapter's noise; a head's is mask tokens: leave it out");
  }
}

}  // namespace

void TrainConfig::apply(Compat compat) {
  switch (compat) {
    case Compat::none:
      return;
    case Compat::repo:
      reduction = LossReduction::repo;
      kept = KeptOffsets::from_first_difference;
      train_prompt = true;
      teacher = TeacherKind::detached;
      consistency_decay = 1;
      return;
    case Compat::paper:
      reduction = LossReduction::paper;
      kept = KeptOffsets::all;
      train_prompt = false;
      teacher = TeacherKind::detached;
      consistency_decay = 1;
      return;
  }
}

void TrainConfig::validate() const {
  expect_positive("learning_rate", learning_rate);
  expect_positive("batch_samples", static_cast<double>(batch_samples));
  if (batch_samples > kMostBatchSamples) {
    throw ConfigError(fmt::format("train.batch_samples = {} must be at most {}", batch_samples,
                                  kMostBatchSamples));
  }
  expect_positive("tokens_per_rank", static_cast<double>(tokens_per_rank));
  expect_not_negative("ar_weight", ar_weight);
  expect_not_negative("consistency_weight", consistency_weight);
  // Also rejects NaN.
  if (!(consistency_decay > 0 && consistency_decay <= 1)) {
    throw ConfigError(fmt::format("train.consistency_decay is {}; it must be above 0 and at most 1",
                                  consistency_decay));
  }
  if (ar_weight == 0 && consistency_weight == 0) {
    throw ConfigError(
        "train.ar_weight and train.consistency_weight are both 0: there is nothing to learn; set "
        "one");
  }
  if (teacher == TeacherKind::frozen && consistency_weight == 0) {
    throw ConfigError(
        "train.teacher = \"frozen\" has nothing to teach with train.consistency_weight = 0; set "
        "\"detached\"");
  }
  if (ar_loss == ArLoss::distillation && teacher != TeacherKind::frozen) {
    throw ConfigError(
        "train.ar_loss = \"distillation\" needs a teacher that stays as it is; set train.teacher "
        "to \"frozen\", or train.ar_loss to \"cross_entropy\"");
  }
  if (optimizer.offload && collectives == CollectivesChoice::nccl) {
    throw ConfigError(
        "train.collectives = \"nccl\" has nothing to carry beside train.optimizer_offload = true: "
        "gradients and weights then lie in host memory and go by MPI; set \"auto\"");
  }
  if (drafter != Drafter::none) {
    expect_drafter_alone(*this);
  }
  expect_not_negative("gradient_norms_every", static_cast<double>(gradient_norms_every));
  expect_ratio("warmup_ratio", warmup_ratio);
  expect_ratio("minimum_rate_ratio", minimum_rate_ratio);
  optimizer.validate();
  spike_guard.validate();
  collapse.validate();
  filter.validate();
  early_stop.validate();
}

PackingOptions TrainConfig::packing(const std::vector<TokenId>& eos_ids) const {
  PackingOptions options;
  options.mask = mask;
  options.reduction = reduction;
  options.kept = kept;
  options.consistency_decay = consistency_decay;
  options.train_prompt = train_prompt;
  options.ar_targets = drafter == Drafter::none;  // A frozen model's answers cannot move.
  options.noisy_last = drafter != Drafter::none;
  options.eos_ids = eos_ids;
  return options;
}

TrainingTransformer::Options TrainConfig::transformer_options() const {
  return {.activation_checkpointing = activation_checkpointing,
          .compute = compute,
          .adapter = drafter == Drafter::adapter ? std::optional(adapter) : std::nullopt};
}

LearningRateSchedule TrainConfig::schedule(std::int64_t total_steps) const {
  return {learning_rate, total_steps, warmup_ratio, minimum_rate_ratio};
}

std::optional<std::string> unbalanced_gradients(const StepMetrics& metrics) {
  if (metrics.step == 1 || !metrics.consistency_gradient_norm || !metrics.ar_gradient_norm ||
      *metrics.consistency_gradient_norm <= kMaxGradientRatio * *metrics.ar_gradient_norm) {
    return std::nullopt;
  }
  return fmt::format(
      "step {}: the consistency gradient's norm is {:.3g} and the AR gradient's {:.3g}: the model "
      "may lose its answers; raise train.ar_weight, or set train.compat to \"none\"; "
      "train.early_stop_every and train.collapse_check_every watch for it",
      metrics.step, *metrics.consistency_gradient_norm, *metrics.ar_gradient_norm);
}

}  // namespace jforge
