#pragma once

/// Finds memory that changed by itself: weights and optimizer state that a rank keeps, between two
/// updates, and replicas of weights that differ from what their owner keeps.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/tensor_view.h"
#include "workers/train/parameter_store.h"

namespace jforge {

struct GuardConfig {
  /// Updates between checks of a kind; 0 = never. What is not due is not hashed. Replicas are first
  /// compared before update 1; state is checked from the first update or load on, by the update
  /// after one that is due.
  std::int64_t check_replicas_every = 1;
  std::int64_t check_state_every = 1;

  /// Throws ConfigError naming the key ("train.check_replicas_every …").
  void validate() const;
};

class StateGuard {
 public:
  explicit StateGuard(const GuardConfig& config) : config_(config) {}

  /// Whether replicas are compared before the update after `updates` of them.
  [[nodiscard]] bool replicas_due(const Communicator& comm, std::int64_t updates) const;
  /// Collective; every rank sends 8 bytes. Throws NumericalError on all ranks, naming the lowest
  /// whose own weights changed since seal_weights(), or else whose replica differs from the
  /// owner's.
  void compare_replicas(const Communicator& comm, const ParameterStore& store,
                        std::int64_t updates);
  /// Remembers the rank's own compute weights after `updates` updates, where compare_replicas()
  /// will be due: replicas are compared with what their owner made, not with what it holds then.
  void seal_weights(const Communicator& comm, const ParameterStore& store, std::int64_t updates);

  /// For the passes of an update over the state (KernelSet::adamw): where the hashes of what they
  /// find and what they leave add up, null where a check is not due. `updates`: with this one.
  void begin_update(std::int64_t updates);
  [[nodiscard]] AdamWHashes* found() { return seal_ ? &found_ : nullptr; }
  [[nodiscard]] AdamWHashes* left() { return left_ ? &*left_ : nullptr; }
  /// After them. Throws NumericalError when what they found, or the frozen teacher, is not what the
  /// update before left.
  void end_update(const ParameterStore& store, std::int64_t updates, Rank rank);
  /// State after `updates` updates that were not made here; `hashes()` gives what left() would
  /// hold.
  void loaded(const ParameterStore& store, std::int64_t updates,
              const std::function<AdamWHashes()>& hashes);

 private:
  struct Seal {
    AdamWHashes state;
    std::uint64_t teacher = 0;  ///< 0 where none is kept.
  };

  GuardConfig config_;
  std::optional<Seal> seal_;
  AdamWHashes found_;
  std::optional<AdamWHashes> left_;
  std::optional<ParameterStore::OwnHashes> weights_;  ///< seal_weights().
  std::vector<std::int64_t> owners_;                  ///< Gathered, reused.
};

}  // namespace jforge
