#pragma once

/// AdamW (Loshchilov & Hutter 2019) on the masters and moments of a rank. An update: check
/// gradients, clip, update (or skip), publish.

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
  double clip_norm = 1.0;  ///< Maximum global gradient norm; 0: no clipping.
  int zero_stage = 1;      ///< See sharding.h.
  bool offload = false;    ///< Keep state in host memory if the kernels compute on a device.
  GuardConfig guard = {};

  /// Throws ConfigError naming the key ("train.clip_norm …").
  void validate() const;
};

/// One object per rank and round; all ranks act together. Not thread-safe.
class ShardedAdamW {
 public:
  struct StepReport {
    double gradient_norm = 0;  ///< Global, before clipping.
    float clip_scale = 1;      ///< Factor applied to the gradients.
  };

  /// Not collective. `store` must outlive it. Throws ConfigError, EnvironmentError.
  ShardedAdamW(const ParameterTable& table, const Communicator& comm, MemoryAccount& account,
               ParameterStore& store, const OptimizerConfig& config);

  /// Whether finish_gradients() or update() has thrown while checking the state against the last
  /// update. Equal on all ranks.
  [[nodiscard]] bool state_in_question() const noexcept { return state_in_question_; }

  /// ParameterStore::StepShape::replica_hashes of the next step.
  [[nodiscard]] TensorView replica_hashes() { return guard_.replica_hashes(comm_, updates_); }
  /// Call after a step's passes: enqueues everything that finish_gradients() reads. On a device the
  /// host waits only for collectives that run on the host.
  void fetch();
  /// Collective; calls fetch() if that was not done. Waits for the gradients. Throws NumericalError
  /// on every rank, naming the first bad one, if a gradient or the summed gradient is not finite or
  /// a replica of weights differs from its owner's; no weight has changed then. update() or skip()
  /// must follow.
  [[nodiscard]] StepReport finish_gradients();
  /// Collective. Applies the update. Throws NumericalError on every rank, naming the first bad one,
  /// if a rank's state has changed since its last update. This may be found while updating, so the
  /// state is worthless then.
  void update(double learning_rate, const StepReport& report);
  /// On all ranks: drops the gradients. Weights, moments and updates() do not change.
  void skip() { store_.clear_gradients(); }
  /// finish_gradients() and update().
  StepReport step(double learning_rate);

  [[nodiscard]] ParameterStore& store() const noexcept { return store_; }
  /// Updates since initialisation: exponent of Adam's bias correction.
  [[nodiscard]] std::int64_t updates() const noexcept { return updates_; }
  /// float32 [owned_size], at the store's home.
  [[nodiscard]] TensorView first_moment() const { return first_moment_.floats({size_}); }
  [[nodiscard]] TensorView second_moment() const { return second_moment_.floats({size_}); }

  /// Collective. Loads a checkpoint's shard into `state`, first_moment() or second_moment().
  /// `shard`: this rank's shard vector on the host; may alias `state`. Throws InternalError for a
  /// wrong size, before the first collective.
  void load_moment(std::span<const float> shard, const TensorView& state) const;
  /// Collective, after both moments. Loads the weights; `updates`: number of updates made.
  void load_weights(std::span<const float> shard, std::int64_t updates);

 private:
  /// Elements of an owned range with the same decay flag.
  struct Run {
    std::size_t owned;   ///< Index into ParameterStore::owned().
    std::int64_t begin;  ///< Within that range.
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
  std::vector<double> squares_;  ///< Of all ranks.
  std::int64_t updates_ = 0;
};

}  // namespace jforge
