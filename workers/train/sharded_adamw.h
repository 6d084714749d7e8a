#pragma once

/// AdamW (Loshchilov & Hutter 2019) on a rank's masters and moments: check, clip, update, publish.

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
  double clip_norm = 1.0;  ///< 0: no clipping.
  int zero_stage = 1;      ///< See sharding.h.
  bool offload = false;    ///< Keep state in host memory.
  GuardConfig guard = {};

  /// Throws ConfigError naming the key.
  void validate() const;
};

/// One object per rank and round; all ranks act together. Not thread-safe.
class ShardedAdamW {
 public:
  struct StepReport {
    double gradient_norm = 0;  ///< Global, before clipping.
    float clip_scale = 1;      ///< Factor applied to the gradients.
  };

  /// Not collective. `comm`: the ranks of all copies, in a RankGrid's order. `store` must outlive
  /// it. Throws ConfigError, EnvironmentError.
  ShardedAdamW(const ParameterTable& table, const Communicator& comm, MemoryAccount& account,
               ParameterStore& store, const OptimizerConfig& config);

  /// Whether finish_gradients() or update() has thrown while checking state. Equal on all ranks.
  [[nodiscard]] bool state_in_question() const noexcept { return state_in_question_; }

  /// For the next step's ParameterStore::StepShape.
  [[nodiscard]] TensorView replica_hashes() { return guard_.replica_hashes(comm_, updates_); }
  /// After a step's passes: enqueues the reads of finish_gradients(). On a device the host waits
  /// only for collectives that run on the host.
  void fetch();
  /// Collective; includes fetch() if it was not called. Throws NumericalError on all ranks, naming
  /// the first bad one, if a gradient or the summed gradient is not finite or a replica of weights
  /// differs from its owner's; weights are unchanged then. update() or skip() must follow.
  [[nodiscard]] StepReport finish_gradients();
  /// Collective. Throws NumericalError on all ranks, naming the first bad one, if a rank's state
  /// has changed since its last update. This is found while updating, so the state is worthless
  /// then.
  void update(double learning_rate, const StepReport& report);
  /// On all ranks: drops the gradients; nothing else changes.
  void skip() { store_.clear_gradients(); }
  StepReport step(double learning_rate);

  [[nodiscard]] ParameterStore& store() const noexcept { return store_; }
  /// Also the exponent of Adam's bias correction.
  [[nodiscard]] std::int64_t updates() const noexcept { return updates_; }
  /// float32 [owned_size], at the store's home.
  [[nodiscard]] TensorView first_moment() const { return first_moment_.floats({size_}); }
  [[nodiscard]] TensorView second_moment() const { return second_moment_.floats({size_}); }

  /// Collective. Loads `shard`, this rank's shard vector on the host, into first_moment() or
  /// second_moment(), which it may alias. Throws InternalError for a wrong size, before the first
  /// collective.
  void load_moment(std::span<const float> shard, const TensorView& state) const;
  /// Collective, after both moments. `updates`: number of updates made.
  void load_weights(std::span<const float> shard, std::int64_t updates);

 private:
  /// Elements of an owned range with one decay flag.
  struct Run {
    std::size_t owned;  ///< Index into ParameterStore::owned().
    std::int64_t begin;
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
  std::vector<double> squares_;
  std::int64_t updates_ = 0;
};

}  // namespace jforge
