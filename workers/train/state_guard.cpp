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

NumericalError changed(const char* what, Rank rank, std::int64_t updates) {
  return NumericalError(
      fmt::format("{} of shard {} changed in memory between update {} and the next: memory "
                  "corruption on this rank; resume from the last checkpoint and check the machine",
                  what, rank, updates));
}

/// What a rank lends others.
const char* weights_name(const ParameterStore& store) {
  return store.sharding().compute == DType::float32 ? "weights" : "compute weights";
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
  // An owner's weights are the truth, so first every rank looks at its own.
  const ParameterStore::OwnHashes now = store.own_hashes();
  const ParameterStore::OwnHashes sealed = weights_.value_or(now);
  const auto own_is_sealed = [&] {
    if (now.weights != sealed.weights) {
      throw changed(weights_name(store), comm.rank(), updates);
    }
    if (now.teacher != sealed.teacher) {
      throw changed("frozen teacher", comm.rank(), updates);
    }
  };
  const auto own = static_cast<std::int64_t>(sealed.together());
  owners_.resize(static_cast<std::size_t>(comm.size()));
  const auto compare = [&] {
    for (int owner = 0; owner < comm.size(); ++owner) {
      // What a rank uses in place it has no replica of.
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
  // By reference: a std::function that held the lambdas themselves would allocate.
  together(comm, std::cref(own_is_sealed));
  all_gather<std::int64_t>(comm, std::span(&own, 1), owners_);
  together(comm, std::cref(compare));
}

void StateGuard::seal_weights(const Communicator& comm, const ParameterStore& store,
                              std::int64_t updates) {
  weights_.reset();
  if (replicas_due(comm, updates)) {
    weights_ = store.own_hashes();
  }
}

void StateGuard::begin_update(std::int64_t updates) {
  found_ = {};
  left_.reset();
  if (due(config_.check_state_every, updates)) {
    left_.emplace();
  }
}

void StateGuard::end_update(const ParameterStore& store, std::int64_t updates, Rank rank) {
  const std::uint64_t teacher = seal_ || left_ ? store.teacher_hash() : 0;
  if (seal_) {
    const AdamWHashes& before = seal_->state;
    const char* what = found_.parameter != before.parameter         ? "weights"
                       : found_.rounded != before.rounded           ? "compute weights"
                       : found_.first_moment != before.first_moment ? "first moment"
                       : found_ != before                           ? "second moment"
                       : teacher != seal_->teacher                  ? "frozen teacher"
                                                                    : nullptr;
    if (what != nullptr) {
      throw changed(what, rank, updates - 1);
    }
  }
  seal_.reset();
  if (left_) {
    seal_ = Seal{*left_, teacher};
  }
}

void StateGuard::loaded(const ParameterStore& store, std::int64_t updates,
                        const std::function<AdamWHashes()>& hashes) {
  seal_.reset();
  if (due(config_.check_state_every, updates)) {
    seal_ = Seal{hashes(), store.teacher_hash()};
  }
}

}  // namespace jforge
