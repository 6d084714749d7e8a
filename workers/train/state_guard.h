#pragma once

/// Finds memory that changed by itself: weights and optimizer state that a rank keeps, between two
/// updates, and replicas of weights that differ from what their owner keeps.

#include <cstdint>
#include <optional>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/tensor_view.h"
#include "workers/train/parameter_store.h"

namespace jforge {

struct GuardConfig {
  /// Updates between checks of a kind; 0 = never. What is not due is not hashed. Replicas are first
  /// compared before update 1; state is checked from the first update or load on.
  std::int64_t check_replicas_every = 1;
  std::int64_t check_state_every = 1;

  /// Throws ConfigError naming the key ("train.check_replicas_every …").
  void validate() const;
};

class StateGuard {
 public:
  /// `kernels`: those of the host; they hash.
  StateGuard(const GuardConfig& config, KernelSet& kernels) : config_(config), kernels_(kernels) {}

  /// Whether replicas are compared before the update after `updates` of them.
  [[nodiscard]] bool replicas_due(const Communicator& comm, std::int64_t updates) const;
  /// Collective; every rank sends 8 bytes. Throws NumericalError on all ranks, naming the lowest
  /// whose replica differs from the owner's.
  void compare_replicas(const Communicator& comm, const ParameterStore& store,
                        std::int64_t updates);

  /// Remembers the rank's own weights and moments after `updates` updates, where verify_state()
  /// will be due.
  void seal_state(const ParameterStore& store, ConstTensorView first_moment,
                  ConstTensorView second_moment, std::int64_t updates);
  /// Throws NumericalError when what was sealed has changed.
  void verify_state(const ParameterStore& store, ConstTensorView first_moment,
                    ConstTensorView second_moment, std::int64_t updates, Rank rank);

 private:
  struct Seal {
    std::uint64_t weights;
    std::uint64_t compute_weights;  ///< 0 where they are the masters.
    std::uint64_t teacher;          ///< 0 where none is kept.
    std::uint64_t first_moment;
    std::uint64_t second_moment;
    bool operator==(const Seal&) const = default;
  };
  [[nodiscard]] Seal seal_of(const ParameterStore& store, ConstTensorView first_moment,
                             ConstTensorView second_moment);

  GuardConfig config_;
  KernelSet& kernels_;
  std::optional<Seal> seal_;
  std::vector<std::int64_t> owners_;  ///< Gathered, reused.
};

}  // namespace jforge
