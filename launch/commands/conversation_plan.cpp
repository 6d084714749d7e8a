#include "launch/commands/conversation_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "launch/commands/plan_time.h"
#include "model/transformer/parameter_table.h"
#include "runtime/comm/rank_grid.h"

namespace jforge {

namespace {

/// Samples have mean length, micro-batches at most train.tokens_per_rank.
struct StepPlan {
  double mean_tokens = 0;    ///< Tokens of a sample.
  std::int64_t samples = 0;  ///< On the rank that has most.
  std::int64_t longest = 0;
  std::int64_t rows = 0;  ///< The largest micro-batch.
  std::int64_t micro_batches = 0;
};

StepPlan plan_step(const ConversationTraining& training, const PreparedTraining& prepared,
                   int ranks) {
  StepPlan plan;
  for (const CausalSample& sample : prepared.samples) {
    const auto tokens = static_cast<std::int64_t>(sample.tokens.size());
    plan.mean_tokens += static_cast<double>(tokens);
    plan.longest = std::max(plan.longest, tokens);
  }
  plan.mean_tokens /= static_cast<double>(prepared.samples.size());
  const std::int64_t budget = training.train.tokens_per_rank;
  plan.samples = (training.train.batch_samples + ranks - 1) / ranks;
  plan.rows = std::min(budget, plan.samples * plan.longest);
  const double all_rows = static_cast<double>(plan.samples) * plan.mean_tokens;
  plan.micro_batches = static_cast<std::int64_t>(all_rows) / budget + 1;
  return plan;
}

}  // namespace

MemoryPlan plan_memory(const ConversationTraining& training, const PreparedTraining& prepared,
                       int ranks, Device device) {
  const StepPlan step = plan_step(training, prepared, ranks);
  const int of_copy = ranks_of_copy(ranks, training.train.shard_ranks);
  return plan_training(prepared.model, ParameterTable(prepared.model, of_copy), training.train,
                       training.train.sharding(), device,
                       {.packed = step.rows, .micro_batches = step.micro_batches}, ranks / of_copy);
}

std::string describe_plan(const ConversationTraining& training, const PreparedTraining& prepared,
                          int ranks, Device device, const MachineSpeed& speed) {
  const ParameterTable table(prepared.model, ranks);
  const StepPlan step = plan_step(training, prepared, ranks);
  const MemoryPlan plan = plan_memory(training, prepared, ranks, device);
  const bool host = device == Device::cpu;
  RoundWork work;
  work.steps = prepared.steps;
  work.step_samples = step.samples;
  work.prompt_tokens = step.mean_tokens;
  work.recompute = training.train.activation_checkpointing;
  const auto megabytes = [](double bytes) { return fmt::format("{:.1f} MB", bytes / 1e6); };
  return fmt::format(
      "model: {} parameters\nranks: {}\nsamples: {}, of {:.0f} tokens on average, at most {}\n"
      "steps: {} of {} samples\nmemory per rank (ZeRO stage {}, {}): weights {}, gradients {}, "
      "optimizer {}, communication {}, activations of {} rows {}, {}copy for checkpoints {}; {} in "
      "all{}\na step of {} micro-batch{} sends from each rank {}\ncheckpoint: {}\n"
      "time, estimated: {}\n",
      table.parameter_count(), ranks, prepared.samples.size(), step.mean_tokens, step.longest,
      prepared.steps, training.train.batch_samples, training.train.optimizer.zero_stage,
      dtype_name(training.train.compute), megabytes(plan.state.weights),
      megabytes(plan.state.gradients), megabytes(plan.state.optimizer),
      megabytes(plan.state.communication), plan.rows, megabytes(plan.activations),
      host ? "" : fmt::format("vocabulary loss {}, ", megabytes(plan.loss)),
      megabytes(plan.snapshot), megabytes(plan.training()),
      host ? "" : fmt::format(" and {} on the device", megabytes(plan.training_on_device())),
      plan.micro_batches, plan.micro_batches == 1 ? "" : "es", megabytes(plan.payload.total()),
      megabytes(12 * static_cast<double>(table.flat_size())),
      duration_text(estimate_round(prepared.model, work, speed).train));
}

}  // namespace jforge
