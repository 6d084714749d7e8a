#include "workers/train/sharded_adamw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "model/kernels/kernel_arguments.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/error.h"

namespace jforge {

void OptimizerConfig::validate() const {
  Sharding{.stage = zero_stage}.validate();
  const auto in_unit_interval = [](const char* key, float value) {
    if (!(value >= 0 && value < 1)) {
      throw ConfigError(fmt::format("train.{} = {} must lie in [0, 1)", key, value));
    }
  };
  in_unit_interval("beta1", beta1);
  in_unit_interval("beta2", beta2);
  if (!(epsilon > 0) || !std::isfinite(epsilon)) {
    throw ConfigError(fmt::format("train.epsilon = {} must be positive", epsilon));
  }
  if (!(weight_decay >= 0) || !std::isfinite(weight_decay)) {
    throw ConfigError(fmt::format("train.weight_decay = {} must not be negative", weight_decay));
  }
  if (!(clip_norm >= 0) || !std::isfinite(clip_norm)) {
    throw ConfigError(
        fmt::format("train.clip_norm = {} must not be negative (0 turns clipping off)", clip_norm));
  }
  guard.validate();
}

ShardedAdamW::ShardedAdamW(const ParameterTable& table, const Communicator& comm,
                           MemoryAccount& account, ParameterStore& store,
                           const OptimizerConfig& config)
    : table_(table),
      kernels_(store.home()),
      comm_(comm),
      store_(store),
      config_(config),
      guard_(config.guard, store.home(), account, table.shard_count()),
      size_(owned_size(table, store.sharding())),
      own_squares_(store.home(), account) {
  config_.validate();
  const std::size_t bytes = static_cast<std::size_t>(size_) * sizeof(float);
  first_moment_ = Buffer(bytes, account, kernels_.device(), MemoryUse::optimizer);
  second_moment_ = Buffer(bytes, account, kernels_.device(), MemoryUse::optimizer);
  const std::span<const ShardGroup> owned = store.owned();
  for (const ParameterEntry& entry : table.entries()) {
    const auto index = static_cast<std::size_t>(entry.group);
    const std::int64_t first = owned[index].flat_begin;
    const std::int64_t begin = std::max(entry.offset, first);
    const std::int64_t end =
        std::min(entry.offset + entry.shape.elements(), first + owned[index].size);
    if (begin >= end) {
      continue;
    }
    if (!runs_.empty() && runs_.back().owned == index && runs_.back().decay == entry.decay &&
        runs_.back().begin + runs_.back().size == begin - first) {
      runs_.back().size += end - begin;
    } else {
      runs_.push_back({index, begin - first, end - begin, entry.decay});
    }
  }
}

void ShardedAdamW::fetch() {
  store_.fetch_reductions();
  fetch_squares();
  guard_.fetch(comm_, store_, updates_, [this](const TensorView& sums) { hash_state(sums); });
  fetched_ = true;
}

ShardedAdamW::StepReport ShardedAdamW::finish_gradients() {
  together(comm_, [this] {
    if (!std::exchange(fetched_, false)) {
      fetch();
      fetched_ = false;
    }
    store_.synchronize();
    store_.expect_finite_gradients(updates_ + 1);
    guard_.read();
  });
  if (guard_.replicas_due(comm_, updates_)) {
    state_in_question_ = true;
    guard_.compare_replicas(comm_, store_, updates_);
    state_in_question_ = false;
  }
  StepReport report;
  report.gradient_norm = std::sqrt(gradient_squares());
  if (!std::isfinite(report.gradient_norm)) {
    NumericalError error(
        fmt::format("the gradient summed over {} ranks is not finite at update {} although every "
                    "rank's own is: it overflowed; "
                    "lower train.learning_rate or set train.clip_norm",
                    comm_.size(), updates_ + 1));
    // Every rank computed the same value.
    error.set_on_all_ranks();
    throw error;
  }
  if (config_.clip_norm > 0 && report.gradient_norm > config_.clip_norm) {
    report.clip_scale = static_cast<float>(config_.clip_norm / report.gradient_norm);
  }
  return report;
}

void ShardedAdamW::update(double learning_rate, const StepReport& report) {
  const auto apply_here = [&] { apply(learning_rate, report.clip_scale); };
  // A std::function that held the lambda itself would allocate.
  state_in_question_ = true;
  together(comm_, std::cref(apply_here));
  state_in_question_ = false;
  // Before the in-place gather, for which the next step does not wait.
  guard_.seal_weights(comm_, store_, updates_);
  store_.publish();
  store_.clear_gradients();
}

ShardedAdamW::StepReport ShardedAdamW::step(double learning_rate) {
  const StepReport report = finish_gradients();
  update(learning_rate, report);
  return report;
}

void ShardedAdamW::fetch_squares() {
  const bool whole = !store_.sharding().shards_state();
  const std::int64_t parts = whole ? table_.shard_count() : 1;
  own_squares_.reset(parts);
  for (const ShardGroup& range : store_.owned()) {
    const ConstTensorView gradient = store_.owned_gradient(range);
    const std::int64_t length = range.size / parts;
    for (std::int64_t part = 0; part < parts; ++part) {
      kernels_.sum_of_squares(gradient.rows(part * length, (part + 1) * length),
                              own_squares_.part(part, 1));
    }
  }
  own_squares_.fetch();
}

/// Adds the first copy's Σ x² in rank order: the same bits at any stage and rank.
double ShardedAdamW::gradient_squares() {
  const std::span<const double> own = own_squares_.fetched();
  if (!store_.sharding().shards_state()) {
    squares_.assign(own.begin(), own.end());
  } else {
    squares_.resize(static_cast<std::size_t>(comm_.size()));
    all_gather<double>(comm_, own, squares_);
  }
  const auto first_copy = squares_.begin() + table_.shard_count();
  return std::accumulate(squares_.begin(), first_copy, 0.0);
}

void ShardedAdamW::apply(double learning_rate, float clip_scale) {
  AdamWSettings settings;
  settings.learning_rate = static_cast<float>(learning_rate);
  settings.beta1 = config_.beta1;
  settings.beta2 = config_.beta2;
  settings.epsilon = config_.epsilon;
  settings.weight_decay = config_.weight_decay;
  settings.gradient_scale = clip_scale;
  settings.step = ++updates_;
  AdamWHashes hashes = guard_.begin_update(updates_, comm_.rank());
  for (const Run& run : runs_) {
    const ConstTensorView gradient = store_.owned_gradient(store_.owned()[run.owned]);
    kernels_.adamw(settings, run.decay, gradient.rows(run.begin, run.begin + run.size),
                   state_of(run), hashes);
    ++hashes.seed;
  }
  guard_.end_update(store_, updates_, comm_.rank());
}

AdamWState ShardedAdamW::state_of(const Run& run) const {
  const ShardGroup& range = store_.owned()[run.owned];
  const std::int64_t end = run.begin + run.size;
  const std::int64_t begin = range.shard_begin + run.begin;
  const TensorView rounded = store_.rounded_master(range);
  return {.parameter = store_.master(range).rows(run.begin, end),
          .first_moment = first_moment().rows(begin, begin + run.size),
          .second_moment = second_moment().rows(begin, begin + run.size),
          .rounded = rounded.empty() ? rounded : rounded.rows(run.begin, end)};
}

void ShardedAdamW::hash_state(const TensorView& sums) const {
  std::uint64_t seed = 0;
  for (const Run& run : runs_) {
    hash_adamw_state(kernels_, state_of(run), seed++, sums);
  }
}

void ShardedAdamW::load_weights(std::span<const float> shard, std::int64_t updates) {
  expect(updates >= 0, "a negative number of updates");
  store_.load(shard);
  // If masters are lent, an in-place gather may still write them.
  store_.wait_for_weights();
  updates_ = updates;
  guard_.loaded(store_, updates_, [this](const TensorView& sums) { hash_state(sums); });
  guard_.seal_weights(comm_, store_, updates_);
}

void ShardedAdamW::load_moment(std::span<const float> shard, const TensorView& state) const {
  expect(shard.size() == static_cast<std::size_t>(shard_vector_size(table_)),
         "optimizer state of another size than this rank's shard");
  const ConstTensorView values(shard.data(), Shape{std::ssize(shard)});
  if (!store_.sharding().shards_state()) {
    for (const ShardGroup& range : shard_groups(table_, comm_.rank() % table_.shard_count())) {
      const ParameterGroup& group = table_.groups()[static_cast<std::size_t>(range.group)];
      store_.gather_blocks(values.rows(range.shard_begin, range.shard_begin + range.size),
                           state.rows(group.offset, group.offset + group.padded_size));
    }
  } else if (values.raw() != state.raw()) {
    kernels_.queue().copy(values, state);
  }
  store_.finish_gathers();  // `shard` may be freed.
}

}  // namespace jforge
