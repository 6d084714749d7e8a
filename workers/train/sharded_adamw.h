#pragma once

/// AdamW (Loshchilov & Hutter 2019) on the masters that a rank keeps, with its moments, and the
/// order of an update over all ranks: check, reduce, clip, update (or skip), publish.

#include <cstdint>
#include <span>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "model/kernels/result_sums.h"
#include "model/transformer/parameter_table.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/buffer.h"
#include "workers/train/parameter_store.h"
#include "workers/train/sharding.h"
#include "workers/train/state_guard.h"

namespace jforge {

struct OptimizerConfig {
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float weight_decay = 0;  ///< Decoupled; matrices only.
  double clip_norm = 1.0;  ///< Largest global gradient norm; 0 turns clipping off.
  int zero_stage = 1;      ///< What is sharded (sharding.h) …
  bool offload = false;    ///< … and where it lies where the kernels compute on a device.
  GuardConfig guard = {};

  /// Throws ConfigError naming the key ("train.clip_norm …").
  void validate() const;
};

/// One object per rank and round; all ranks together. Not thread-safe.
class ShardedAdamW {
 public:
  struct StepReport {
    double gradient_norm = 0;  ///< Global, before clipping.
    float clip_scale = 1;      ///< What the gradients were multiplied with.
  };

  /// `store` must outlive it. Not collective. Throws ConfigError, EnvironmentError.
  ShardedAdamW(const ParameterTable& table, const Communicator& comm, MemoryAccount& account,
               ParameterStore& store, const OptimizerConfig& config);

  /// Whether finish_gradients() or update() has thrown while it compared the state with what the
  /// last update left. Alike on all ranks.
  [[nodiscard]] bool state_in_question() const noexcept { return state_in_question_; }

  /// For the step to come: ParameterStore::StepShape::replica_hashes.
  [[nodiscard]] TensorView replica_hashes() { return guard_.replica_hashes(comm_, updates_); }
  /// After the passes of a step: asks for all that finish_gradients() looks at. On a device the
  /// host does not wait; where collectives run on it, for them.
  void fetch();
  /// Collective, after fetch() or instead of it: waits for the gradients and checks them. Throws
  /// NumericalError on every rank, naming the first bad one, when a gradient is not finite, the
  /// gradients' sum overflows or a replica of the weights differs from its owner's. No weight has
  /// changed; update() or skip() must follow.
  [[nodiscard]] StepReport finish_gradients();
  /// Collective. The update that finish_gradients() reported on. Throws NumericalError on every
  /// rank, naming the first bad one, when a rank's state had changed since its last update: found
  /// as it is read to be updated, so the state is worthless then.
  void update(double learning_rate, const StepReport& report);
  /// On all ranks: leaves it out. Weights, moments and updates() stay as they are.
  void skip() { store_.clear_gradients(); }
  /// finish_gradients(), update().
  StepReport step(double learning_rate);

  [[nodiscard]] ParameterStore& store() const noexcept { return store_; }
  /// Updates made since the state was fresh: the exponent of Adam's bias correction.
  [[nodiscard]] std::int64_t updates() const noexcept { return updates_; }
  /// float32 [owned_size], at the store's home.
  [[nodiscard]] TensorView first_moment() const { return first_moment_.floats({size_}); }
  [[nodiscard]] TensorView second_moment() const { return second_moment_.floats({size_}); }

  /// Collective. Takes over a checkpoint's first_moment() or second_moment(): `shard` is this
  /// rank's shard vector on the host, which may be the state itself. Throws InternalError on a
  /// wrong size, before the first collective.
  void load_moment(std::span<const float> shard, const TensorView& state) const;
  /// Collective, after both moments. The same for the weights, and how many updates were made.
  void load_weights(std::span<const float> shard, std::int64_t updates);

 private:
  /// Elements of an owned range that share a decay flag.
  struct Run {
    std::size_t owned;   ///< Index into ParameterStore::owned().
    std::int64_t begin;  ///< In that range.
    std::int64_t size;
    bool decay;
  };

  void fetch_squares();
  [[nodiscard]] double gradient_squares();
  void apply(double learning_rate, float clip_scale);
  [[nodiscard]] AdamWState state_of(const Run& run) const;
  /// Adds to `sums` as KernelSet::adamw does.
  void hash_state(const TensorView& sums) const;

  const ParameterTable& table_;
  KernelSet& kernels_;
  const Communicator& comm_;
  ParameterStore& store_;
  OptimizerConfig config_;
  StateGuard guard_;
  bool state_in_question_ = false;
  std::int64_t size_;
  Buffer first_moment_;
  Buffer second_moment_;
  std::vector<Run> runs_;
  ResultSums own_squares_;
  bool fetched_ = false;
  std::vector<double> squares_;  ///< Of all ranks, reused.
  std::int64_t updates_ = 0;
};

}  // namespace jforge
