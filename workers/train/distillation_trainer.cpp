#include "workers/train/distillation_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "runtime/comm/collectives.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"
#include "runtime/random.h"
#include "runtime/stop_signal.h"

namespace jforge {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct BatchRange {
  std::int64_t first;
  std::int64_t end;
  [[nodiscard]] std::int64_t size() const { return end - first; }
};

constexpr int kMeasuredPasses = 2;
constexpr int kLossSums = 2;

/// Fault "nan@train": makes one gradient NaN.
class PoisonedGradients final : public GradientSink {
 public:
  explicit PoisonedGradients(GradientSink& sink) : sink_(sink) {}
  [[nodiscard]] TensorView open(std::int32_t group) override {
    const TensorView view = sink_.open(group);
    embedding_ = group == 0 ? view : embedding_;
    return view;
  }
  [[nodiscard]] bool undefined(std::int32_t group) const override { return sink_.undefined(group); }
  void ready(std::int32_t group) override {
    if (group == 0) {
      const float poison = std::numeric_limits<float>::quiet_NaN();
      copy_tensor(ConstTensorView(&poison, Shape{1}), embedding_.rows(0, 1));
    }
    sink_.ready(group);
  }

 private:
  GradientSink& sink_;
  TensorView embedding_;
};

BatchRange batch_range(std::int64_t step, std::int64_t batch_samples, std::int64_t order_size) {
  const std::int64_t first = (step - 1) * batch_samples;
  return {first, std::min(first + batch_samples, order_size)};
}

PackingOptions packing_of(const TrainConfig& config, const std::optional<HeadShape>& head,
                          const TransformerConfig& model) {
  PackingOptions options = config.packing(model.eos_ids);
  if (head) {
    options.mask_token = head->mask_token;
  }
  return options;
}

TrainingTransformer::Options options_of(const TrainConfig& config,
                                        const std::optional<HeadShape>& head) {
  TrainingTransformer::Options options = config.transformer_options();
  options.head = head;
  return options;
}

std::unique_ptr<Collectives> collectives_of(const TrainContext& context, const Communicator& comm,
                                            const TrainConfig& config) {
  return make_collectives(comm, config.sharding().home(context.kernels.device()),
                          context.kernels.device(), context.account, config.collectives);
}

}  // namespace

DistillationTrainer::DistillationTrainer(const TrainContext& context, std::span<const float> shard,
                                         const TrainConfig& config)
    : context_(context),
      config_(config),
      head_(config.drafter == Drafter::head ? std::optional(completed(config.head, context.model))
                                            : std::nullopt),
      plan_(context.model),
      packing_(packing_of(config, head_, context.model)),
      collectives_(
          collectives_of(context, context.grid ? context.grid->within : context.comm, config)),
      across_(context.grid != nullptr && context.grid->across.size() > 1
                  ? collectives_of(context, context.grid->across, config)
                  : nullptr),
      store_(context.table, config.sharding(), context.kernels, *collectives_, context.account,
             shard, across_.get()),
      optimizer_(context.table, context.comm, context.account, store_, config.optimizer),
      transformer_(head_ ? head_config(context.model, *head_) : context.model,
                   context.frozen && !head_ ? context.frozen->table : context.table,
                   context.kernels, context.account, options_of(config, head_)),
      spike_guard_(config.spike_guard),
      results_(context.kernels, context.account) {
  config_.validate();
  expect(context.frozen.has_value() == (config.drafter != Drafter::none),
         "a drafter is trained beside a frozen model, and only then");
  if (head_) {
    teacher_.emplace(
        context.model, context.frozen->table, context.kernels, context.account,
        TrainingTransformer::Options{
            .compute = config.compute, .forward_only = true, .features = head_->features});
  } else if (store_.sharding().teacher) {
    teacher_.emplace(context.model, context.table, context.kernels, context.account,
                     TrainingTransformer::Options{.compute = config.compute, .forward_only = true});
  }
}

std::uint64_t DistillationTrainer::bytes_sent() const {
  return collectives_->bytes().total() + (across_ ? across_->bytes().total() : 0);
}

double DistillationTrainer::waited_seconds() const {
  return collectives_->waited_seconds() + (across_ ? across_->waited_seconds() : 0);
}

TrainOutcome DistillationTrainer::run(SampleSource& source, const TrainPlan& plan,
                                      const TrainHooks& hooks) {
  static_cast<void>(agree(context_.comm, false, [&] { check_plan(source, plan); }));
  const auto stop_here = [&] {
    return hooks.stop_requested ? hooks.stop_requested() : stop_requested();
  };
  const LearningRateSchedule schedule = config_.schedule(plan.total_steps);
  PeakFlops peak = plan.peak;
  spike_guard_.restore(plan.state.spike_guard);

  TrainOutcome outcome = TrainOutcome::finished;
  for (std::int64_t step = plan.steps_done + 1; step <= plan.total_steps; ++step) {
    const Clock::time_point start = Clock::now();
    const std::uint64_t payload_before = bytes_sent();
    LocalWork work;
    const auto forward_and_backward = [&] { work = accumulate(source, step, hooks); };
    // A std::function that held the lambda itself would allocate.
    bool stop = agree(context_.comm, stop_here(), std::cref(forward_and_backward));

    StepMetrics metrics;
    metrics.step = step;
    metrics.samples = batch_range(step, config_.batch_samples, source.size()).size();
    metrics.learning_rate = schedule.at(step);
    update(work, metrics);
    work.payload_bytes = bytes_sent() - payload_before;
    stop = gather_metrics(work, seconds_since(start), stop_here(), peak, metrics) || stop;

    if (hooks.clock != nullptr) {
      hooks.clock->progress(step);
    }
    const bool ends_here = hooks.probe && hooks.probe(metrics);
    if (hooks.on_step) {
      try {
        hooks.on_step(metrics);
      } catch (...) {
        hook_failure_ = std::current_exception();
      }
    }
    spike_guard_.expect_patience(step);
    if (hooks.at_boundary) {
      hooks.at_boundary();
    }
    const bool last = step == plan.total_steps || ends_here;
    const bool due = plan.checkpoint_every > 0 && step % plan.checkpoint_every == 0;
    if (hooks.save && (stop || last || due)) {
      hooks.save(step);
    }
    if (stop && !last) {
      outcome = TrainOutcome::interrupted;
    }
    if (stop || last) {
      break;
    }
  }
  store_.wait_for_weights();
  static_cast<void>(agree(context_.comm, false, [&] {
    if (hook_failure_) {
      std::rethrow_exception(hook_failure_);
    }
  }));
  return outcome;
}

void DistillationTrainer::check_plan(const SampleSource& source, const TrainPlan& plan) {
  if (plan.total_steps < 1 || plan.steps_done < 0 || plan.steps_done > plan.total_steps) {
    throw ConfigError(fmt::format(
        "cannot run training steps {} to {}: the order of samples and the checkpoint disagree",
        plan.steps_done + 1, plan.total_steps));
  }
  first_planned_ = batch_range(plan.steps_done + 1, config_.batch_samples, source.size()).first;
  planned_lengths_.clear();
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
      planned_lengths_.push_back(length);
    }
  }
}

DistillationTrainer::LocalWork DistillationTrainer::accumulate(SampleSource& source,
                                                               std::int64_t step,
                                                               const TrainHooks& hooks) {
  try {
    const BatchRange batch = batch_range(step, config_.batch_samples, source.size());
    const auto begin = planned_lengths_.begin() + (batch.first - first_planned_);
    lengths_.assign(begin, begin + batch.size());
    const bool all_measure = norms_due(step) && store_.sharding().shards_weights();
    const Passes passes = divide_batch();
    store_.begin_step({.micro_batches = passes.count,
                       .measured_passes = all_measure ? kMeasuredPasses : 0,
                       .measured_micro_batch = passes.first_of_rank_0,
                       .replica_hashes = optimizer_.replica_hashes()});
    return train_batch(source, step, batch.first, passes, hooks);
  } catch (const std::exception& error) {
    give_up_step(describe_failure(error));
    throw;
  }
}

void DistillationTrainer::give_up_step(const FailureText& failure) {
  try {
    store_.abandon();
  } catch (...) {
    // After a sticky device error, or before the step's script is known, this rank cannot join the
    // collectives in which the others wait.
    Error error(failure.code, failure.message);
    error.set_cut_off();
    throw error;
  }
}

DistillationTrainer::Passes DistillationTrainer::divide_batch() {
  over_ranks_.assign_to_ranks(lengths_, context_.comm.size());
  const auto cut = [&](BatchDivision& micro_batches, std::size_t rank) {
    micro_batches.cut_micro_batches(over_ranks_.lists()[rank], lengths_, config_.tokens_per_rank);
    return static_cast<std::int64_t>(micro_batches.lists().size());
  };
  std::int64_t most = 1;
  for (std::size_t rank = 0; rank < over_ranks_.lists().size(); ++rank) {
    most = std::max(most, cut(other_micro_batches_, rank));
  }
  cut(micro_batches_, static_cast<std::size_t>(context_.comm.rank()));
  return {most, most - cut(other_micro_batches_, 0)};
}

DistillationTrainer::LocalWork DistillationTrainer::train_batch(SampleSource& source,
                                                                std::int64_t step,
                                                                std::int64_t first,
                                                                const Passes& passes,
                                                                const TrainHooks& hooks) {
  if (hook_failure_) {
    std::rethrow_exception(hook_failure_);
  }
  const Clock::time_point start = Clock::now();
  const double waited = waited_seconds();
  PoisonedGradients poisoned(store_);
  GradientSink& gradients =
      fault_point("train", step) ? static_cast<GradientSink&>(poisoned) : store_;
  const auto batch_size = static_cast<double>(lengths_.size());
  const auto sample_weight = static_cast<float>(1.0 / batch_size);

  LocalWork work;
  double measuring_seconds = 0;
  double measured_share = 0;  // of the batch's samples
  TeacherForward teacher;
  const auto measure = [&](std::size_t members) {
    const Clock::time_point measuring = Clock::now();
    if (measure_terms(passes, teacher)) {
      measured_share = static_cast<double>(members) / batch_size;
    }
    measuring_seconds = seconds_since(measuring);
  };
  results_.reset(kLossSums * passes.count + kMeasuredPasses + kLossSums);
  first_samples_.clear();
  const auto num_empty = passes.count - static_cast<std::int64_t>(micro_batches_.lists().size());
  for (std::int64_t pass = 0; pass < passes.count; ++pass) {
    batch_.clear();
    const bool empty = pass < num_empty;
    std::size_t members = 0;
    std::int64_t first_sample = first;
    if (!empty) {
      fault_point("train.accumulate");
      const std::vector<std::size_t>& list =
          micro_batches_.lists()[static_cast<std::size_t>(pass - num_empty)];
      build_batch(source, first, list, sample_weight);
      members = list.size();
      first_sample += static_cast<std::int64_t>(list.front());
    }
    teacher = teach();
    forward_batch();
    if (!empty &&
        propose_noise(first, micro_batches_.lists()[static_cast<std::size_t>(pass - num_empty)])) {
      work.flops += forward_flops(plan_, batch_);
      batch_.clear();
      append_samples(batch_, distilled_, packing_, sample_weight);
      forward_batch();
    }
    if (pass == passes.first_of_rank_0 && norms_due(step) &&
        (store_.sharding().shards_weights() || context_.comm.rank() == 0)) {
      measure(members);
    }
    backward(pass, gradients, teacher);
    first_samples_.push_back(first_sample);
    if (empty) {
      continue;
    }
    work.tokens += static_cast<double>(batch_.tokens.size());
    work.flops += pass_flops();
    work.kept_offsets += static_cast<double>(batch_.kept_offsets);
    work.ar_targets += static_cast<double>(batch_.ar_targets);
    work.micro_batches += 1;
    if (hooks.clock != nullptr) {
      hooks.clock->progress(step);
    }
  }
  const Event end = context_.kernels.queue().record();
  const double waited_in_passes = waited_seconds() - waited;
  // Enqueues all device reads before the only wait.
  results_.fetch();
  optimizer_.fetch();
  store_.wait(end);
  work.communication_seconds = waited_seconds() - waited;
  work.work_seconds =
      seconds_since(start) - measuring_seconds - (work.communication_seconds - waited_in_passes);
  store_.synchronize();
  read_results(step, measured_share, work);
  return work;
}

double DistillationTrainer::pass_flops() const {
  const std::int64_t vocabulary = context_.model.vocabulary_size;
  const double frozen_forward = forward_flops(plan_, teacher_batch_);
  if (!head_) {
    return training_flops(plan_, vocabulary, batch_, context_.frozen.has_value()) + frozen_forward;
  }
  // Only noisy rows pass the layers, forward and backward; the frozen logits have no backward.
  const LayerPlan own(head_config(context_.model, *head_));
  return frozen_forward + training_flops(own, vocabulary, batch_, true) +
         2 * forward_flops(own, batch_, true) - forward_flops(own, batch_);
}

void DistillationTrainer::forward_batch() {
  if (head_) {
    take_clean_rows(batch_, teacher_batch_);
    const ConstTensorView hidden = teacher_->forward(teacher_batch_, context_.frozen->weights);
    model_forward_.emplace(FrozenForward{context_.frozen->table, context_.frozen->weights, hidden,
                                         teacher_->features()});
    transformer_.forward_head(batch_, *model_forward_, store_);
  } else if (context_.frozen) {
    transformer_.forward(batch_, context_.frozen->weights, &store_);
  } else {
    transformer_.forward(batch_, store_);
  }
}

// Decoding drafts what the adapter proposed in the pass before, of which fewer tokens may have been
// right than in the trajectory's state. So some right tokens are taken back.
bool DistillationTrainer::propose_noise(std::int64_t first,
                                        const std::vector<std::size_t>& members) {
  constexpr std::size_t kTakenBack = 4;
  if (config_.own_proposals == 0) {
    return false;
  }
  bool any = false;
  std::size_t end = 0;  // The sample's proposals end here.
  find_noisy_rows(batch_.layout, noisy_);
  for (std::size_t i = 0; i < noisy_.size(); ++i) {
    PackedSample& sample = distilled_[i];
    const auto rows = static_cast<std::size_t>(noisy_[i].end - noisy_[i].begin);
    const std::size_t begin = std::exchange(end, end + rows);
    RandomStream stream(config_.proposals_seed, RandomPurpose::own_proposals, 0,
                        static_cast<std::uint64_t>(first) + members[i],
                        static_cast<std::uint64_t>(sample.prompt_id));
    if (stream.uniform() >= config_.own_proposals) {
      continue;
    }
    if (!any) {
      transformer_.propose(context_.frozen->weights, proposals_);
      any = true;
    }
    const auto size = static_cast<std::size_t>(sample.block_size);
    for (std::size_t block = 0; block < rows; block += size) {
      std::size_t right = 0;
      while (right < size && sample.noisy[block + right] == sample.clean[block + right]) {
        ++right;
      }
      right -= right == 0 ? 0 : stream.below(std::min(kTakenBack, right));
      for (std::size_t offset = std::max<std::size_t>(right, 1); offset < size; ++offset) {
        sample.noisy[block + offset] = proposals_[begin + block + offset - 1];
      }
      sample.noisy[block] = sample.clean[block];
    }
  }
  return any;
}

void DistillationTrainer::backward(std::int64_t pass, GradientSink& gradients,
                                   const TeacherForward& teacher) {
  const LossTerms terms{.consistency_scale = config_.consistency_weight,
                        .ar_scale = config_.ar_weight,
                        .sums = results_.part(kLossSums * pass, kLossSums),
                        .ar_loss = config_.ar_loss};
  if (head_) {
    transformer_.loss_and_backward_head(*model_forward_, store_, terms, gradients);
  } else if (context_.frozen) {
    transformer_.loss_and_backward(context_.frozen->weights, store_, terms, gradients);
  } else {
    transformer_.loss_and_backward(store_, terms, gradients, teacher);
  }
}

void DistillationTrainer::read_results(std::int64_t step, double measured_share, LocalWork& work) {
  const std::span<const double> results = results_.fetched();
  for (std::size_t pass = 0; pass < first_samples_.size(); ++pass) {
    const double consistency = results[kLossSums * pass];
    const double autoregressive = results[kLossSums * pass + 1];
    if (!std::isfinite(consistency) || !std::isfinite(autoregressive)) {
      throw NumericalError(
          fmt::format("loss is not finite at step {} (consistency {}, autoregressive {}; first "
                      "sample of the micro-batch: {}); "
                      "nothing was changed",
                      step, consistency, autoregressive, first_samples_[pass]));
    }
    work.losses.consistency += consistency;
    work.losses.autoregressive += autoregressive;
  }
  if (measured_share > 0 && context_.comm.rank() == 0) {
    const std::span<const double> squares = results.subspan(kLossSums * first_samples_.size());
    work.norms = {std::sqrt(squares[0]) / measured_share, std::sqrt(squares[1]) / measured_share};
  }
}

void DistillationTrainer::update(LocalWork& work, StepMetrics& metrics) {
  const double waited = waited_seconds();
  const ShardedAdamW::StepReport report = optimizer_.finish_gradients();
  metrics.gradient_norm = report.gradient_norm;
  metrics.clip_scale = static_cast<double>(report.clip_scale);
  if (spike_guard_.active()) {
    metrics.skipped = spike_guard_.is_spike(weighted_loss(work.losses));
    metrics.skipped_steps = spike_guard_.state().skipped;
    metrics.spike_reference = spike_guard_.reference();
  }
  if (metrics.skipped) {
    optimizer_.skip();
    if (context_.comm.rank() == 0) {
      log_warn("step {}: the update is left out: {}", metrics.step, spike_guard_.describe());
    }
  } else {
    optimizer_.update(metrics.learning_rate, report);
  }
  work.communication_seconds += waited_seconds() - waited;
}

double DistillationTrainer::weighted_loss(const VocabularyLossSums& own) {
  const std::array<double, 2> sums = {own.consistency, own.autoregressive};
  gathered_losses_.resize(sums.size() * static_cast<std::size_t>(context_.comm.size()));
  all_gather<double>(context_.comm, sums, gathered_losses_);
  VocabularyLossSums all;
  for (std::size_t i = 0; i < gathered_losses_.size(); i += sums.size()) {
    all.consistency += gathered_losses_[i];
    all.autoregressive += gathered_losses_[i + 1];
  }
  return config_.weighted(all);
}

bool DistillationTrainer::norms_due(std::int64_t step) const {
  const std::int64_t every = config_.gradient_norms_every;
  return every > 0 && (step - 1) % every == 0;
}

TeacherForward DistillationTrainer::teach() {
  if (!teacher_ || head_) {
    return {};
  }
  take_teacher_rows(batch_, teacher_batch_, config_.ar_loss == ArLoss::distillation);
  return {.hidden = teacher_->forward(teacher_batch_, store_.teacher()),
          .parameters = &store_.teacher()};
}

bool DistillationTrainer::measure_terms(const Passes& passes, const TeacherForward& teacher) {
  const bool both = batch_.kept_offsets > 0 && batch_.ar_targets > 0 &&
                    config_.consistency_weight > 0 && config_.ar_weight > 0;
  // With sharded weights every rank takes part.
  if (!both && !store_.sharding().shards_weights()) {
    return false;
  }
  const std::int64_t squares = kLossSums * passes.count;
  const TensorView unused = results_.part(squares + kMeasuredPasses, kLossSums);
  // Activations are kept.
  const auto measure = [&](std::int64_t term, float consistency_weight, float ar_weight) {
    store_.measure_next_backward(results_.part(squares + term, 1));
    transformer_.loss_and_backward(store_,
                                   {.consistency_scale = consistency_weight,
                                    .ar_scale = ar_weight,
                                    .sums = unused,
                                    .ar_loss = config_.ar_loss},
                                   store_, teacher);
  };
  measure(0, config_.consistency_weight, 0);
  measure(1, 0, config_.ar_weight);
  static_assert(kMeasuredPasses == 2);
  return both;
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
        // Clean rows never see noisy ones (invariant I10), so the SFT control does not need them.
        packed->noisy.clear();
      }
      distilled_.push_back(std::move(*packed));
    } else {
      causal_.push_back(std::move(std::get<CausalSample>(sample)));
    }
  }
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
    communication_seconds,
    payload_bytes,
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
                                              work.communication_seconds,
                                              static_cast<double>(work.payload_bytes),
                                              step_seconds,
                                              stop ? 1.0 : 0.0,
                                              work.norms.consistency,
                                              work.norms.autoregressive};
  const auto ranks = static_cast<std::size_t>(context_.comm.size());
  std::vector<double>& all = gathered_;
  all.resize(ranks * num_fields);
  all_gather<double>(context_.comm, own, all);
  // Summed in rank order, so metrics are reproducible and equal everywhere.
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
  metrics.loss = config_.weighted({metrics.consistency, metrics.autoregressive});
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
  metrics.communication_milliseconds =
      1e3 * all[slowest(communication_seconds) * num_fields + communication_seconds];
  metrics.payload_bytes = std::llround(sum(payload_bytes));
  metrics.slowest_rank = static_cast<Rank>(slowest(work_seconds));
  const double mean_work = sum(work_seconds) / static_cast<double>(ranks);
  metrics.straggler_ratio =
      mean_work > 0 ? all[slowest(work_seconds) * num_fields + work_seconds] / mean_work : 1;
  return sum(stopped) > 0;
}

}  // namespace jforge
