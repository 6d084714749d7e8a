#include "workers/train/zero_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"

namespace jforge {

namespace {

std::size_t float_bytes(std::int64_t elements) {
  return static_cast<std::size_t>(elements) * sizeof(float);
}

}  // namespace

void OptimizerConfig::validate() const {
  if (zero_stage < 0 || zero_stage > 3) {
    throw ConfigError(
        fmt::format("train.zero_stage = {} does not exist; this version offers 1", zero_stage));
  }
  if (zero_stage != 1) {
    throw ConfigError(fmt::format(
        "train.zero_stage = {} is not available in this version; set train.zero_stage = 1",
        zero_stage));
  }
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
  if (check_replicas_every < 0) {
    throw ConfigError(fmt::format(
        "train.check_replicas_every = {} must not be negative (0 = never)", check_replicas_every));
  }
}

ZeroOptimizer::ZeroOptimizer(const ParameterTable& table, KernelSet& kernels,
                             const Communicator& comm, MemoryAccount& account, TensorView weights,
                             const OptimizerConfig& config)
    : table_(table), kernels_(kernels.host()), comm_(comm), config_(config), weights_(weights) {
  config_.validate();
  expect(table.shard_count() == comm.size(),
         "the parameter table's shard count differs from the number of ranks");
  expect_shape(weights, {table.flat_size()}, "weights");
  gradients_ = Buffer(float_bytes(table.flat_size()), account);
  first_moment_ = Buffer(float_bytes(shard_vector_size(table)), account);
  second_moment_ = Buffer(float_bytes(shard_vector_size(table)), account);
  const auto ranks = static_cast<std::size_t>(comm.size());
  for (int rank = 0; rank < comm.size(); ++rank) {
    groups_of_.push_back(shard_groups(table, rank));
  }
  groups_ = groups_of_[static_cast<std::size_t>(comm.rank())];
  replica_hashes_.resize(ranks);
  gathered_hashes_.resize(ranks * ranks);
  for (const ShardSlice& slice : shard_slices(table, comm.rank())) {
    const bool decay = table.entries()[slice.entry].decay;
    if (!runs_.empty() && runs_.back().decay == decay &&
        runs_.back().flat_begin + runs_.back().size == slice.flat_begin &&
        runs_.back().shard_begin + runs_.back().size == slice.shard_begin) {
      runs_.back().size += slice.size();
    } else {
      runs_.push_back({slice.flat_begin, slice.shard_begin, slice.size(), decay});
    }
  }
}

ZeroOptimizer::StepReport ZeroOptimizer::step(double learning_rate) {
  const bool compares = config_.check_replicas_every > 0 && comm_.size() > 1;
  const bool replicas_due = compares && updates_ % config_.check_replicas_every == 0;
  static_cast<void>(agree(comm_, false, [&] {
    check_gradients();
    if (config_.check_owned_state) {
      check_owned_state();
    }
    if (compares) {
      hash_replicas();
    }
  }));
  if (replicas_due) {
    check_replicas();
  }
  StepReport report;
  report.gradient_norm = std::sqrt(reduce_gradients());
  if (!std::isfinite(report.gradient_norm)) {
    // Every rank computed the same value from the same numbers, so all of them throw here.
    throw NumericalError(
        fmt::format("the gradient summed over {} ranks is not finite at update {} although every "
                    "rank's own is: it overflowed; "
                    "lower train.learning_rate or set train.clip_norm",
                    comm_.size(), updates_ + 1));
  }
  if (config_.clip_norm > 0 && report.gradient_norm > config_.clip_norm) {
    report.clip_scale = static_cast<float>(config_.clip_norm / report.gradient_norm);
  }
  update_shard(learning_rate, report.clip_scale);
  gather_weights();
  const std::span<float> gradients = gradient_span(0, table_.flat_size());
  std::fill(gradients.begin(), gradients.end(), 0.0F);
  if (config_.check_owned_state) {
    seal_ = seal_now();
  }
  return report;
}

void ZeroOptimizer::load(std::span<const float> weights_shard, std::span<const float> first_moment,
                         std::span<const float> second_moment, std::int64_t updates) {
  const auto size = static_cast<std::size_t>(shard_vector_size(table_));
  expect(
      weights_shard.size() == size && first_moment.size() == size && second_moment.size() == size,
      "optimizer state of another size than this rank's shard");
  expect(updates >= 0, "a negative number of updates");
  for (const ShardGroup& group : groups_) {
    const auto source = weights_shard.subspan(static_cast<std::size_t>(group.shard_begin),
                                              static_cast<std::size_t>(group.size));
    std::copy(source.begin(), source.end(), weight_span(group.flat_begin, group.size).begin());
  }
  std::copy(first_moment.begin(), first_moment.end(), this->first_moment().data<float>());
  std::copy(second_moment.begin(), second_moment.end(), this->second_moment().data<float>());
  updates_ = updates;
  std::fill(replica_hashes_.begin(), replica_hashes_.end(), 0);
  gather_weights();
  if (config_.check_owned_state) {
    seal_ = seal_now();
  }
}

std::uint64_t ZeroOptimizer::ring_payload_bytes() const {
  const auto ranks = static_cast<std::uint64_t>(comm_.size());
  return float_bytes(table_.flat_size()) / ranks * (ranks - 1);
}

void ZeroOptimizer::check_gradients() const {
  for (const ParameterGroup& group : table_.groups()) {
    const ConstTensorView view(gradient_span(group.offset, group.padded_size).data(),
                               Shape{group.padded_size});
    if (std::isfinite(kernels_.sum_of_squares(view))) {
      continue;
    }
    for (const ParameterEntry& entry : table_.entries()) {
      const std::span<const float> values = gradient_span(entry.offset, entry.shape.elements());
      if (!std::all_of(values.begin(), values.end(),
                       [](float value) { return std::isfinite(value); })) {
        throw NumericalError(
            fmt::format("gradient of {} is not finite before update {}; nothing was changed; "
                        "resume from the last checkpoint, with "
                        "a lower train.learning_rate if it happens again",
                        entry.name, updates_ + 1));
      }
    }
    throw NumericalError(fmt::format("gradient padding of group {} is not finite before update {}",
                                     group.name, updates_ + 1));
  }
}

void ZeroOptimizer::check_owned_state() const {
  if (!seal_) {
    return;
  }
  const Seal now = seal_now();
  if (now == *seal_) {
    return;
  }
  const char* what = now.weights != seal_->weights             ? "weights"
                     : now.first_moment != seal_->first_moment ? "first moment"
                                                               : "second moment";
  throw NumericalError(
      fmt::format("{} of shard {} changed in memory between update {} and the next: memory "
                  "corruption on this rank; resume from the "
                  "last checkpoint and check the machine",
                  what, comm_.rank(), updates_));
}

void ZeroOptimizer::hash_replicas() {
  for (std::size_t owner = 0; owner < groups_of_.size(); ++owner) {
    std::int64_t& chained = replica_hashes_[owner];
    chained = static_cast<std::int64_t>(
        hash_weights_of(groups_of_[owner], static_cast<std::uint64_t>(chained)));
  }
}

void ZeroOptimizer::check_replicas() {
  const auto ranks = static_cast<std::size_t>(comm_.size());
  const std::vector<std::int64_t>& hashes = gathered_hashes_;
  all_gather<std::int64_t>(comm_, replica_hashes_, gathered_hashes_);
  std::fill(replica_hashes_.begin(), replica_hashes_.end(), 0);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t owner = 0; owner < ranks; ++owner) {
      // The owner's copy is the truth: it was checked against its seal before this comparison.
      if (hashes[rank * ranks + owner] != hashes[owner * ranks + owner]) {
        throw NumericalError(fmt::format(
            "rank {}: its replica of the weights owned by rank {} differs after update "
            "{}{}: memory corruption on rank "
            "{}; resume from the last checkpoint and check the machine",
            rank, owner, updates_,
            config_.check_replicas_every > 1
                ? fmt::format(" or one of the {} before", config_.check_replicas_every - 1)
                : "",
            rank));
      }
    }
  }
}

std::uint64_t ZeroOptimizer::hash_weights_of(std::span<const ShardGroup> groups,
                                             std::uint64_t seed) const {
  std::uint64_t hash = seed;
  for (const ShardGroup& group : groups) {
    hash = hash64(std::as_bytes(weight_span(group.flat_begin, group.size)), hash);
  }
  return hash;
}

ZeroOptimizer::Seal ZeroOptimizer::seal_now() const {
  return {hash_weights_of(groups_, 0), hash64(std::as_bytes(first_moment().span<float>())),
          hash64(std::as_bytes(second_moment().span<float>()))};
}

double ZeroOptimizer::reduce_gradients() {
  double own = 0;
  for (const ShardGroup& group : groups_) {
    const ParameterGroup& whole = table_.groups()[static_cast<std::size_t>(group.group)];
    const std::span<float> shard = gradient_span(group.flat_begin, group.size);
    reduce_scatter_sum<float>(comm_, gradient_span(whole.offset, whole.padded_size), shard);
    own += kernels_.sum_of_squares(ConstTensorView(shard.data(), Shape{group.size}));
  }
  // Gathered and added in rank order instead of all-reduced: the same bits on every rank whatever
  // the algorithm.
  squares_.resize(static_cast<std::size_t>(comm_.size()));
  all_gather<double>(comm_, std::span<const double>(&own, 1), squares_);
  double total = 0;
  for (const double value : squares_) {
    total += value;
  }
  return total;
}

void ZeroOptimizer::update_shard(double learning_rate, float clip_scale) {
  AdamWSettings settings;
  settings.learning_rate = static_cast<float>(learning_rate);
  settings.beta1 = config_.beta1;
  settings.beta2 = config_.beta2;
  settings.epsilon = config_.epsilon;
  settings.weight_decay = config_.weight_decay;
  settings.gradient_scale = clip_scale;
  settings.step = ++updates_;
  float* first = first_moment().data<float>();
  float* second = second_moment().data<float>();
  for (const Run& run : runs_) {
    const Shape shape{run.size};
    kernels_.adamw(
        settings, run.decay, ConstTensorView(gradient_span(run.flat_begin, run.size).data(), shape),
        TensorView(weight_span(run.flat_begin, run.size).data(), shape),
        TensorView(first + run.shard_begin, shape), TensorView(second + run.shard_begin, shape));
  }
}

void ZeroOptimizer::gather_weights() {
  for (const ShardGroup& group : groups_) {
    const ParameterGroup& whole = table_.groups()[static_cast<std::size_t>(group.group)];
    all_gather<float>(comm_, weight_span(group.flat_begin, group.size),
                      weight_span(whole.offset, whole.padded_size));
  }
}

std::span<float> ZeroOptimizer::weight_span(std::int64_t begin, std::int64_t size) const {
  return weights_.span<float>().subspan(static_cast<std::size_t>(begin),
                                        static_cast<std::size_t>(size));
}

std::span<float> ZeroOptimizer::gradient_span(std::int64_t begin, std::int64_t size) const {
  return gradients().span<float>().subspan(static_cast<std::size_t>(begin),
                                           static_cast<std::size_t>(size));
}

}  // namespace jforge
