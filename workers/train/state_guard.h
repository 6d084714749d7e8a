#pragma once

/// Finds memory that changed by itself: weights and optimizer state that a rank keeps, between two
/// updates, and replicas of weights that differ from what their owner keeps.

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
  /// Updates between checks of a kind; 0 = never. What is not due is not hashed. Replicas are first
  /// compared before update 1; state is checked from the first update or load on, by the update
  /// after one that is due.
  std::int64_t check_replicas_every = 1;
  std::optional<std::int64_t> check_state_every;  ///< Unset: 1, or 50 in a device's memory.

  /// Throws ConfigError naming the key ("train.check_replicas_every …").
  void validate() const;
};

/// Hashes add up on the device where the state lies, and are read once per step, with all else that
/// it reads: fetch(), read(). What an update leaves is read in the step after it.
class StateGuard {
 public:
  /// `home`: the set of the state's memory; must outlive the object.
  StateGuard(const GuardConfig& config, KernelSet& home, MemoryAccount& account, int ranks);

  /// Whether replicas are compared before the update after `updates` of them.
  [[nodiscard]] bool replicas_due(const Communicator& comm, std::int64_t updates) const;
  /// Before the passes of that update: ParameterStore::StepShape::replica_hashes.
  [[nodiscard]] TensorView replica_hashes(const Communicator& comm, std::int64_t updates);

  /// After them: hashes what is checked before that update and asks for all hashes. `hash_state`
  /// adds those of the state, as KernelSet::adamw does, to the sums that it is given.
  using HashState = std::function<void(const TensorView& sums)>;
  void fetch(const Communicator& comm, const ParameterStore& store, std::int64_t updates,
             const HashState& hash_state);
  /// Once home's queue has been waited for.
  void read();
  /// After read(). Collective; every rank sends 8 bytes. Throws NumericalError on all ranks, naming
  /// the lowest whose own weights changed since seal_weights(), or else whose replica differs from
  /// the owner's.
  void compare_replicas(const Communicator& comm, const ParameterStore& store,
                        std::int64_t updates);
  /// Remembers the rank's own compute weights after `updates` updates, where compare_replicas()
  /// will be due: replicas are compared with what their owner made, not with what it holds then.
  void seal_weights(const Communicator& comm, const ParameterStore& store, std::int64_t updates);

  /// For the passes of an update over the state (KernelSet::adamw), which the host's hash as they
  /// read it. `updates`: with this one. Throws NumericalError when the state on a device, or the
  /// frozen teacher, is not what the update before left.
  [[nodiscard]] AdamWHashes begin_update(std::int64_t updates, Rank rank);
  /// After them. Throws NumericalError when what they found in the host's state is not what the
  /// update before left.
  void end_update(const ParameterStore& store, std::int64_t updates, Rank rank);
  /// State after `updates` updates that were not made here.
  void loaded(const ParameterStore& store, std::int64_t updates, const HashState& hash_state);

 private:
  /// Places of sums_.
  enum Place : std::int64_t {
    weights_now,
    teacher_now,
    found,  ///< Four, as AdamWHashes.
    weights_sealed = found + 4,
    teacher_sealed,
    left,  ///< Four.
    teacher_left = left + 4,
    replicas,  ///< One for each rank.
  };
  using StateHashes = std::array<std::int64_t, 4>;
  struct OwnHashes {
    std::int64_t weights = 0;
    std::int64_t teacher = 0;  ///< 0 where none is kept.
    /// What the other ranks' replicas add up to.
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
  std::optional<OwnHashes> weights_;  ///< seal_weights().
  bool reads_weights_ = false;        ///< read() finds them.
  std::optional<Seal> seal_;          ///< Of the state.
  bool reads_seal_ = false;
  bool seals_update_ = false;         ///< The one that began.
  std::vector<std::int64_t> owners_;  ///< Gathered, reused.
};

}  // namespace jforge
