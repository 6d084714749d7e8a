#include "workers/train/state_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>

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

const char* weights_name(const ParameterStore& store) {
  return store.sharding().compute == DType::float32 ? "weights" : "compute weights";
}

}  // namespace

void GuardConfig::validate() const {
  expect_not_negative("check_state_every", check_state_every.value_or(0));
}

StateGuard::StateGuard(const GuardConfig& config, KernelSet& home, MemoryAccount& account,
                       int ranks)
    : config_(config),
      state_every_(config.check_state_every.value_or(home.device() == Device::cpu ? 1 : 50)),
      home_(home),
      ranks_(ranks),
      sums_(home, account) {
  // Now, because within a step others would wait for a rank that runs out of memory.
  if (account.backing() != MemoryAccount::Backing::count_only) {
    sums_.reset(replicas + ranks_);
  }
}

std::int64_t StateGuard::OwnHashes::together() const {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(weights) +
                                   static_cast<std::uint64_t>(teacher));
}

TensorView StateGuard::zeroed(Place first, std::int64_t count) {
  const TensorView sums = sums_.part(first, count);
  home_.queue().zero(sums);
  return sums;
}

bool StateGuard::replicas_due(const Communicator& comm, std::int64_t updates) const {
  return comm.size() > 1 && due(config_.check_replicas_every, updates);
}

TensorView StateGuard::replica_hashes(const Communicator& comm, std::int64_t updates) {
  return replicas_due(comm, updates) ? zeroed(replicas, ranks_) : TensorView();
}

void StateGuard::fetch(const Communicator& comm, const ParameterStore& store, std::int64_t updates,
                       const HashState& hash_state) {
  const bool compares = replicas_due(comm, updates);
  const bool checks_state = seal_ || reads_seal_;
  if (compares) {
    store.hash_weights(zeroed(weights_now, 1));
    if (!store.sharding().shards_weights()) {
      store.hash_replicas(zeroed(replicas, ranks_));
    }
  }
  if (compares || checks_state) {
    store.hash_teacher(zeroed(teacher_now, 1));
  }
  if (checks_state && on_device()) {
    hash_state(zeroed(found, 4));
  }
  sums_.fetch();
}

void StateGuard::read() {
  const std::span<const std::int64_t> sums = sums_.fetched();
  if (sums.empty()) {
    return;  // nothing was due yet
  }
  now_ = {sums[weights_now], sums[teacher_now]};
  if (std::exchange(reads_weights_, false)) {
    weights_ = {sums[weights_sealed], sums[teacher_sealed]};
  }
  if (std::exchange(reads_seal_, false)) {
    seal_.emplace();
    std::ranges::copy(sums.subspan(left, 4), seal_->state.begin());
    seal_->teacher = sums[teacher_left];
  }
}

void StateGuard::compare_replicas(const Communicator& comm, const ParameterStore& store,
                                  std::int64_t updates) {
  // Owners are the reference, so every rank first checks its own weights.
  const OwnHashes sealed = weights_.value_or(now_);
  const auto own_is_sealed = [&] {
    if (now_.weights != sealed.weights) {
      throw changed(weights_name(store), comm.rank(), updates);
    }
    if (now_.teacher != sealed.teacher) {
      throw changed("frozen teacher", comm.rank(), updates);
    }
  };
  const std::int64_t own = sealed.together();
  owners_.resize(static_cast<std::size_t>(comm.size()));
  const auto compare = [&] {
    const std::span<const std::int64_t> held = sums_.fetched().subspan(replicas);
    const Rank first_of_copy = comm.rank() / ranks_ * ranks_;
    for (Rank owner = first_of_copy; owner < first_of_copy + ranks_; ++owner) {
      const std::int64_t owned = owners_[static_cast<std::size_t>(owner)];
      const auto index = static_cast<std::size_t>(owner - first_of_copy);
      // Weights used in place have no replica.
      const bool in_place = owner == comm.rank() && !store.sharding().shards_weights();
      if ((!in_place && held[index] != owned) || owned != owners_[index]) {
        throw NumericalError(fmt::format(
            "its replica of the weights owned by rank {} differs after update {}: "
            "memory corruption on this rank; resume from the last checkpoint and check "
            "the machine",
            held[index] != owned && !in_place ? owner : owner - first_of_copy, updates));
      }
    }
  };
  // A std::function that held the lambdas themselves would allocate.
  together(comm, std::cref(own_is_sealed));
  all_gather<std::int64_t>(comm, std::span(&own, 1), owners_);
  together(comm, std::cref(compare));
}

void StateGuard::seal_weights(const Communicator& comm, const ParameterStore& store,
                              std::int64_t updates) {
  weights_.reset();
  reads_weights_ = replicas_due(comm, updates);
  if (reads_weights_) {
    store.hash_weights(zeroed(weights_sealed, 1));
    store.hash_teacher(zeroed(teacher_sealed, 1));
  }
}

AdamWHashes StateGuard::begin_update(std::int64_t updates, Rank rank) {
  seals_update_ = due(state_every_, updates);
  AdamWHashes hashes;
  if (seals_update_) {
    hashes.left = zeroed(left, 4);
  }
  if (seal_ && on_device()) {
    StateHashes state{};
    std::ranges::copy(sums_.fetched().subspan(found, 4), state.begin());
    expect_sealed(state, updates - 1, rank);
  } else if (seal_) {
    hashes.found = zeroed(found, 4);
  }
  return hashes;
}

void StateGuard::end_update(const ParameterStore& store, std::int64_t updates, Rank rank) {
  if (seal_ && !on_device()) {
    StateHashes state{};
    std::ranges::copy(sums_.part(found, 4).span<std::int64_t>(), state.begin());
    expect_sealed(state, updates - 1, rank);
  }
  seal_.reset();
  reads_seal_ = seals_update_;
  if (reads_seal_) {
    store.hash_teacher(zeroed(teacher_left, 1));
  }
}

void StateGuard::expect_sealed(const StateHashes& state, std::int64_t updates, Rank rank) const {
  const auto& [parameter, first_moment, second_moment, rounded] = seal_->state;
  const char* what = state[0] != parameter            ? "weights"
                     : state[3] != rounded            ? "compute weights"
                     : state[1] != first_moment       ? "first moment"
                     : state[2] != second_moment      ? "second moment"
                     : now_.teacher != seal_->teacher ? "frozen teacher"
                                                      : nullptr;
  if (what != nullptr) {
    throw changed(what, rank, updates);
  }
}

void StateGuard::loaded(const ParameterStore& store, std::int64_t updates,
                        const HashState& hash_state) {
  seal_.reset();
  reads_seal_ = due(state_every_, updates);
  if (reads_seal_) {
    hash_state(zeroed(left, 4));
    store.hash_teacher(zeroed(teacher_left, 1));
  }
}

}  // namespace jforge
