#include "workers/train/state_guard.h"

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <span>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/error.h"

namespace jforge {

namespace {

bool due(std::int64_t every, std::int64_t updates) { return every > 0 && updates % every == 0; }

void expect_not_negative(const char* key, std::int64_t value) {
  if (value < 0) {
    throw ConfigError(fmt::format("train.{} = {} must not be negative (0 = never)", key, value));
  }
}

}  // namespace

void GuardConfig::validate() const {
  expect_not_negative("check_replicas_every", check_replicas_every);
  expect_not_negative("check_state_every", check_state_every);
}

bool StateGuard::replicas_due(const Communicator& comm, std::int64_t updates) const {
  return comm.size() > 1 && due(config_.check_replicas_every, updates);
}

void StateGuard::compare_replicas(const Communicator& comm, const ParameterStore& store,
                                  std::int64_t updates) {
  owners_.resize(static_cast<std::size_t>(comm.size()));
  const auto own = static_cast<std::int64_t>(store.own_hash());
  all_gather<std::int64_t>(comm, std::span(&own, 1), owners_);
  const auto compare = [&] {
    for (int owner = 0; owner < comm.size(); ++owner) {
      // The owner's copy is the truth: it is verified by itself. What it uses in place it has no
      // replica of.
      if (owner == comm.rank() && !store.sharding().shards_weights()) {
        continue;
      }
      if (static_cast<std::int64_t>(store.replica_hash(owner)) !=
          owners_[static_cast<std::size_t>(owner)]) {
        throw NumericalError(
            fmt::format("its replica of the weights owned by rank {} differs after update {}: "
                        "memory corruption on this rank; resume from the last checkpoint and check "
                        "the machine",
                        owner, updates));
      }
    }
  };
  // By reference: a std::function that held the lambda itself would allocate.
  together(comm, std::cref(compare));
}

void StateGuard::seal_state(const ParameterStore& store, ConstTensorView first_moment,
                            ConstTensorView second_moment, std::int64_t updates) {
  seal_.reset();
  if (due(config_.check_state_every, updates)) {
    seal_ = seal_of(store, first_moment, second_moment);
  }
}

void StateGuard::verify_state(const ParameterStore& store, ConstTensorView first_moment,
                              ConstTensorView second_moment, std::int64_t updates, Rank rank) {
  if (!seal_) {
    return;
  }
  const Seal now = seal_of(store, first_moment, second_moment);
  if (now == *seal_) {
    return;
  }
  const char* what = now.weights != seal_->weights                   ? "weights"
                     : now.teacher != seal_->teacher                 ? "frozen teacher"
                     : now.compute_weights != seal_->compute_weights ? "compute weights"
                     : now.first_moment != seal_->first_moment       ? "first moment"
                                                                     : "second moment";
  throw NumericalError(
      fmt::format("{} of shard {} changed in memory between update {} and the next: memory "
                  "corruption on this rank; resume from the last checkpoint and check the machine",
                  what, rank, updates));
}

StateGuard::Seal StateGuard::seal_of(const ParameterStore& store, ConstTensorView first_moment,
                                     ConstTensorView second_moment) {
  std::uint64_t weights = 0;
  for (const ShardGroup& range : store.owned()) {
    weights = kernels_.content_hash(store.master(range), weights);
  }
  const bool masters_are_weights = store.sharding().compute == DType::float32;
  const std::uint64_t teacher = store.teacher_hash();
  return {weights, masters_are_weights ? 0 : store.own_hash(), teacher,
          kernels_.content_hash(first_moment, 0), kernels_.content_hash(second_moment, 0)};
}

}  // namespace jforge
