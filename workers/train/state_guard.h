#pragma once

/// Detects memory corruption: a rank's weights and optimizer state that change between updates, and
/// replicas of weights that differ from their owner's.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "model/kernels/result_sums.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/tensor_view.h"
#include "workers/train/parameter_store.h"

namespace jforge {

struct GuardConfig {
  /// Updates between checks; 0: never. Replicas are first compared before update 1. State is hashed
  /// after due updates (or a load) and checked by the next update.
  std::int64_t check_replicas_every = 1;
  std::optional<std::int64_t> check_state_every;  ///< Unset: 1 on the host, 50 on a device.

  /// Throws ConfigError naming the key.
  void validate() const;
};

/// Hashes accumulate where the state lies and are read once per step (fetch(), read()); those taken
/// after an update are read in the next step.
class StateGuard {
 public:
  /// `home`: kernels for the state's memory; must outlive the object. `ranks`: of a copy of the
  /// state; `comm` below has all copies (runtime/comm/rank_grid.h).
  StateGuard(const GuardConfig& config, KernelSet& home, MemoryAccount& account, int ranks);

  /// Whether replicas are compared before update `updates` + 1.
  [[nodiscard]] bool replicas_due(const Communicator& comm, std::int64_t updates) const;
  /// For that update's ParameterStore::StepShape.
  [[nodiscard]] TensorView replica_hashes(const Communicator& comm, std::int64_t updates);

  /// After the passes: hashes what is checked before that update and fetches all hashes.
  /// `hash_state` adds the state's hashes as KernelSet::adamw does.
  using HashState = std::function<void(const TensorView& sums)>;
  void fetch(const Communicator& comm, const ParameterStore& store, std::int64_t updates,
             const HashState& hash_state);
  /// Requires: home's queue was synchronized after fetch().
  void read();
  /// Collective, after read(); every rank sends 8 bytes. Throws NumericalError on all ranks, naming
  /// the lowest rank whose own weights changed since seal_weights(), else whose replica differs.
  void compare_replicas(const Communicator& comm, const ParameterStore& store,
                        std::int64_t updates);
  /// Hashes the rank's own compute weights after an update if compare_replicas() will be due:
  /// replicas are compared with what their owner produced, not with what it holds later.
  void seal_weights(const Communicator& comm, const ParameterStore& store, std::int64_t updates);

  /// Returns the sums for KernelSet::adamw in update number `updates`. On a device, throws
  /// NumericalError if state or frozen teacher differ from those that the last update left.
  [[nodiscard]] AdamWHashes begin_update(std::int64_t updates, Rank rank);
  /// After the update. On the host, throws NumericalError on the same condition.
  void end_update(const ParameterStore& store, std::int64_t updates, Rank rank);
  /// After loading state.
  void loaded(const ParameterStore& store, std::int64_t updates, const HashState& hash_state);

 private:
  enum Place : std::int64_t {
    weights_now,
    teacher_now,
    found,  ///< Four, as in AdamWHashes.
    weights_sealed = found + 4,
    teacher_sealed,
    left,  ///< Four.
    teacher_left = left + 4,
    replicas,  ///< One per rank.
  };
  using StateHashes = std::array<std::int64_t, 4>;
  struct OwnHashes {
    std::int64_t weights = 0;
    std::int64_t teacher = 0;  ///< 0 without a teacher.
    /// Expected sum of the other ranks' replica hashes.
    [[nodiscard]] std::int64_t together() const;
  };
  struct Seal {
    StateHashes state;
    std::int64_t teacher;
  };
  [[nodiscard]] bool on_device() const { return home_.device() != Device::cpu; }
  [[nodiscard]] TensorView zeroed(Place first, std::int64_t count);
  void expect_sealed(const StateHashes& state, std::int64_t updates, Rank rank) const;

  GuardConfig config_;
  std::int64_t state_every_;
  KernelSet& home_;
  int ranks_;
  ResultHashes sums_;
  OwnHashes now_;
  std::optional<OwnHashes> weights_;  ///< Set by seal_weights().
  bool reads_weights_ = false;        ///< read() sets weights_.
  std::optional<Seal> seal_;          ///< Taken after the last due update.
  bool reads_seal_ = false;
  bool seals_update_ = false;
  std::vector<std::int64_t> owners_;
};

}  // namespace jforge
