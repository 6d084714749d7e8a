#include "workers/train/distillation_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/stop_signal.h"

namespace jforge {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Samples [first, end) of the order that step `step` (1-based) trains.
struct BatchRange {
  std::int64_t first;
  std::int64_t end;
  [[nodiscard]] std::int64_t size() const { return end - first; }
};

BatchRange batch_range(std::int64_t step, std::int64_t batch_samples, std::int64_t order_size) {
  const std::int64_t first = (step - 1) * batch_samples;
  return {first, std::min(first + batch_samples, order_size)};
}

}  // namespace

DistillationTrainer::DistillationTrainer(const TrainContext& context, TensorView weights,
                                         const TrainConfig& config)
    : context_(context),
      config_(config),
      packing_(config.packing(context.model.eos_ids)),
      optimizer_(context.table, context.kernels, context.comm, context.account, weights,
                 config.optimizer),
      parameters_(context.table, weights, context.kernels, context.account),
      gradients_(context.table, optimizer_.gradients(), context.kernels, context.account),
      transformer_(context.model, context.table, context.kernels, context.account,
                   {.activation_checkpointing = config.activation_checkpointing}) {
  config_.validate();
}

TrainOutcome DistillationTrainer::run(SampleSource& source, const TrainPlan& plan,
                                      const TrainHooks& hooks) {
  static_cast<void>(agree(context_.comm, false, [&] { check_plan(source, plan); }));
  const auto stop_here = [&] {
    return hooks.stop_requested ? hooks.stop_requested() : stop_requested();
  };
  const LearningRateSchedule schedule = config_.schedule(plan.total_steps);
  PeakFlops peak(plan.peak_flops);

  for (std::int64_t step = plan.steps_done + 1; step <= plan.total_steps; ++step) {
    const Clock::time_point start = Clock::now();
    LocalWork work;
    const auto forward_and_backward = [&] { work = accumulate(source, step, hooks); };
    // By reference: a std::function that held the lambda itself would allocate.
    bool stop = agree(context_.comm, stop_here(), std::cref(forward_and_backward));

    StepMetrics metrics;
    metrics.step = step;
    metrics.samples = batch_range(step, config_.batch_samples, source.size()).size();
    metrics.learning_rate = schedule.at(step);
    const ZeroOptimizer::StepReport update = optimizer_.step(metrics.learning_rate);
    metrics.gradient_norm = update.gradient_norm;
    metrics.clip_scale = static_cast<double>(update.clip_scale);
    stop = gather_metrics(work, seconds_since(start), stop_here(), peak, metrics) || stop;

    if (hooks.clock != nullptr) {
      hooks.clock->progress(step);
    }
    if (hooks.on_step) {
      try {
        hooks.on_step(metrics);
      } catch (...) {
        hook_failure_ = std::current_exception();
      }
    }
    if (hooks.at_boundary) {
      hooks.at_boundary();
    }
    const bool last = step == plan.total_steps;
    const bool due = plan.checkpoint_every > 0 && step % plan.checkpoint_every == 0;
    if (hooks.save && (stop || last || due)) {
      hooks.save(step);
    }
    if (stop && !last) {
      return TrainOutcome::interrupted;
    }
  }
  static_cast<void>(agree(context_.comm, false, [&] {
    if (hook_failure_) {
      std::rethrow_exception(hook_failure_);
    }
  }));
  return TrainOutcome::finished;
}

void DistillationTrainer::check_plan(const SampleSource& source, const TrainPlan& plan) const {
  if (plan.total_steps < 1 || plan.steps_done < 0 || plan.steps_done > plan.total_steps) {
    throw ConfigError(fmt::format(
        "cannot run training steps {} to {}: the order of samples and the checkpoint disagree",
        plan.steps_done + 1, plan.total_steps));
  }
  for (std::int64_t step = plan.steps_done + 1; step <= plan.total_steps; ++step) {
    const BatchRange batch = batch_range(step, config_.batch_samples, source.size());
    if (batch.size() < 1) {
      throw ConfigError(
          fmt::format("training step {} of {} has no samples: the round's order has {}, "
                      "train.batch_samples is {}; lower the steps "
                      "or add prompts",
                      step, plan.total_steps, source.size(), config_.batch_samples));
    }
    if (batch.size() < context_.comm.size() && !config_.allow_idle_ranks) {
      throw ConfigError(
          fmt::format("the batch of training step {} has {} samples for {} ranks; raise "
                      "train.batch_samples, use fewer ranks or set "
                      "train.allow_idle_ranks = true",
                      step, batch.size(), context_.comm.size()));
    }
    for (std::int64_t index = batch.first; index < batch.end; ++index) {
      const std::int64_t length = source.length(index);
      if (length < 1 || length > config_.tokens_per_rank) {
        throw ConfigError(
            fmt::format("sample {} of the round takes {} packed tokens but train.tokens_per_rank "
                        "is {}; raise it or lower "
                        "generate.max_new_tokens or prompts.max_prompt_tokens",
                        index, length, config_.tokens_per_rank));
      }
    }
  }
}

DistillationTrainer::LocalWork DistillationTrainer::accumulate(SampleSource& source,
                                                               std::int64_t step,
                                                               const TrainHooks& hooks) {
  if (hook_failure_) {
    std::rethrow_exception(hook_failure_);
  }
  const Clock::time_point start = Clock::now();
  const bool poison = fault_point("train", step);
  const BatchRange batch = batch_range(step, config_.batch_samples, source.size());
  lengths_.resize(static_cast<std::size_t>(batch.size()));
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    lengths_[i] = source.length(batch.first + static_cast<std::int64_t>(i));
  }
  over_ranks_.assign_to_ranks(lengths_, context_.comm.size());
  micro_batches_.cut_micro_batches(
      over_ranks_.lists()[static_cast<std::size_t>(context_.comm.rank())], lengths_,
      config_.tokens_per_rank);
  const auto sample_weight = static_cast<float>(1.0 / static_cast<double>(batch.size()));

  LocalWork work;
  double measuring_seconds = 0;
  for (const std::vector<std::size_t>& members : micro_batches_.lists()) {
    fault_point("train.accumulate");
    build_batch(source, batch.first, members, sample_weight);
    transformer_.forward(batch_, parameters_);
    if (norms_due(step) && work.micro_batches == 0) {
      const Clock::time_point measuring = Clock::now();
      work.norms = measure_term_norms(static_cast<double>(members.size()) /
                                      static_cast<double>(batch.size()));
      measuring_seconds = seconds_since(measuring);
    }
    const VocabularyLossSums losses = transformer_.loss_and_backward(
        batch_, parameters_, config_.consistency_weight, config_.ar_weight, gradients_);
    if (!std::isfinite(losses.consistency) || !std::isfinite(losses.autoregressive)) {
      throw NumericalError(
          fmt::format("loss is not finite at step {} (consistency {}, autoregressive {}; first "
                      "sample of the micro-batch: {}); "
                      "nothing was changed",
                      step, losses.consistency, losses.autoregressive,
                      batch.first + static_cast<std::int64_t>(members.front())));
    }
    work.losses.consistency += losses.consistency;
    work.losses.autoregressive += losses.autoregressive;
    work.tokens += static_cast<double>(batch_.tokens.size());
    work.flops += training_flops(context_.model, batch_);
    work.kept_offsets += static_cast<double>(batch_.kept_offsets);
    work.ar_targets += static_cast<double>(batch_.ar_targets);
    work.micro_batches += 1;
    if (hooks.clock != nullptr) {
      hooks.clock->progress(step);
    }
  }
  if (poison) {
    optimizer_.gradients().data<float>()[context_.table.entries().front().offset] =
        std::numeric_limits<float>::quiet_NaN();
  }
  work.work_seconds = seconds_since(start) - measuring_seconds;
  return work;
}

bool DistillationTrainer::norms_due(std::int64_t step) const {
  const std::int64_t every = config_.gradient_norms_every;
  return every > 0 && (step - 1) % every == 0 && context_.comm.rank() == 0;
}

DistillationTrainer::TermNorms DistillationTrainer::measure_term_norms(double samples_share) {
  const bool both = batch_.kept_offsets > 0 && batch_.ar_targets > 0 &&
                    config_.consistency_weight > 0 && config_.ar_weight > 0;
  if (!both) {
    return {};
  }
  // The step's gradients are still zero, so that they serve as scratch; activations stay as they
  // are.
  const auto norm = [&](float consistency_weight, float ar_weight) {
    static_cast<void>(transformer_.loss_and_backward(batch_, parameters_, consistency_weight,
                                                     ar_weight, gradients_));
    const double squares = context_.kernels.host().sum_of_squares(optimizer_.gradients());
    zero_tensor(optimizer_.gradients());
    return std::sqrt(squares) / samples_share;
  };
  return {norm(config_.consistency_weight, 0), norm(0, config_.ar_weight)};
}

void DistillationTrainer::build_batch(SampleSource& source, std::int64_t first,
                                      const std::vector<std::size_t>& members,
                                      float sample_weight) {
  distilled_.clear();
  causal_.clear();
  for (const std::size_t member : members) {
    TrainingSample sample = source.sample(first + static_cast<std::int64_t>(member));
    if (auto* packed = std::get_if<PackedSample>(&sample)) {
      if (config_.consistency_weight == 0) {
        // Clean rows never see noisy ones (invariant I10), so the control's loss is the same
        // without them, and cheaper.
        packed->noisy.clear();
      }
      distilled_.push_back(std::move(*packed));
    } else {
      causal_.push_back(std::move(std::get<CausalSample>(sample)));
    }
  }
  batch_.clear();
  append_samples(batch_, distilled_, packing_, sample_weight);
  for (const CausalSample& sample : causal_) {
    append_causal_sequence(batch_, sample.tokens, sample.first_target, sample_weight);
  }
}

bool DistillationTrainer::gather_metrics(const LocalWork& work, double step_seconds, bool stop,
                                         PeakFlops& peak, StepMetrics& metrics) {
  enum Field : std::size_t {
    consistency,
    autoregressive,
    tokens,
    flops,
    kept,
    targets,
    micro_batches,
    work_seconds,
    wall_seconds,
    stopped,
    consistency_norm,
    ar_norm,
    num_fields
  };
  const std::array<double, num_fields> own = {work.losses.consistency,
                                              work.losses.autoregressive,
                                              work.tokens,
                                              work.flops,
                                              work.kept_offsets,
                                              work.ar_targets,
                                              work.micro_batches,
                                              work.work_seconds,
                                              step_seconds,
                                              stop ? 1.0 : 0.0,
                                              work.norms.consistency,
                                              work.norms.autoregressive};
  const auto ranks = static_cast<std::size_t>(context_.comm.size());
  std::vector<double>& all = gathered_;
  all.resize(ranks * num_fields);
  all_gather<double>(context_.comm, own, all);
  // Added in rank order on every rank: metrics are equal everywhere and from run to run.
  const auto sum = [&](Field field) {
    double total = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      total += all[rank * num_fields + field];
    }
    return total;
  };
  const auto slowest = [&](Field field) {
    std::size_t best = 0;
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      best = all[rank * num_fields + field] > all[best * num_fields + field] ? rank : best;
    }
    return best;
  };
  metrics.consistency = sum(consistency);
  metrics.autoregressive = sum(autoregressive);
  metrics.loss = static_cast<double>(config_.consistency_weight) * metrics.consistency +
                 static_cast<double>(config_.ar_weight) * metrics.autoregressive;
  metrics.tokens = std::llround(sum(tokens));
  metrics.kept_offsets = std::llround(sum(kept));
  metrics.ar_targets = std::llround(sum(targets));
  metrics.micro_batches = std::llround(all[slowest(micro_batches) * num_fields + micro_batches]);
  const double wall = all[slowest(wall_seconds) * num_fields + wall_seconds];
  metrics.milliseconds = 1e3 * wall;
  metrics.tokens_per_second = wall > 0 ? sum(tokens) / wall : 0;
  if (wall > 0) {
    metrics.mfu = peak.share_of(sum(flops) / wall);
  }
  if (all[consistency_norm] >= 0 && all[ar_norm] >= 0) {
    metrics.consistency_gradient_norm = all[consistency_norm];
    metrics.ar_gradient_norm = all[ar_norm];
  }
  metrics.slowest_rank = static_cast<Rank>(slowest(work_seconds));
  const double mean_work = sum(work_seconds) / static_cast<double>(ranks);
  metrics.straggler_ratio =
      mean_work > 0 ? all[slowest(work_seconds) * num_fields + work_seconds] / mean_work : 1;
  return sum(stopped) > 0;
}

}  // namespace jforge
