#pragma once

/// AdamW with optimizer state sharded over ranks: ZeRO stage 1 (Rajbhandari et al., "ZeRO: Memory
/// Optimizations Toward Training Trillion Parameter Models", SC 2020, section 5.1). Weights and
/// gradients are replicated; each rank keeps the moments of its shard ranges only. CPU float32
/// needs no separate master weights: memory per rank 4P + 4P + 8P/N bytes, payload per step (N−1)/N
/// · (4 + 4) · P bytes. The parameter group is the unit of every reduction and gathering.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoints/shard_slices.h"
#include "model/kernels/kernel_set.h"
#include "model/transformer/parameter_table.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/buffer.h"

namespace jforge {

struct OptimizerConfig {
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float weight_decay = 0;  ///< Decoupled; matrices only.
  double clip_norm = 1.0;  ///< Largest global gradient norm; 0 turns clipping off.
  int zero_stage = 1;      ///< Only 1 in this version.
  /// Steps between comparisons of what all ranks' weights were: each step's weights are hashed,
  /// because the next gathering heals a replica that has fed one wrong gradient. 0 = never.
  std::int64_t check_replicas_every = 1;
  bool check_owned_state =
      true;  ///< Each rank hashes its shard after an update and verifies it before the next.

  /// Throws ConfigError naming the key ("train.clip_norm …").
  void validate() const;
};

/// Holds gradients and this rank's moments; one object per rank and round; not thread-safe.
class ZeroOptimizer {
 public:
  struct StepReport {
    double gradient_norm = 0;  ///< Global, before clipping.
    float clip_scale = 1;      ///< What the gradients were multiplied with.
  };

  /// `weights` is the replicated flat float32 vector [table.flat_size()], owned by the caller and
  /// holding the model already; the table's shard_count must be comm.size(). Not collective. Throws
  /// ConfigError, EnvironmentError.
  ZeroOptimizer(const ParameterTable& table, KernelSet& kernels, const Communicator& comm,
                MemoryAccount& account, TensorView weights, const OptimizerConfig& config);

  [[nodiscard]] ConstTensorView weights() const { return weights_; }
  /// Flat float32 [flat_size]: backward passes add here until step() takes and zeroes it.
  [[nodiscard]] TensorView gradients() const { return gradients_.floats({table_.flat_size()}); }
  /// Shard vectors (checkpoints/shard_slices.h).
  [[nodiscard]] TensorView first_moment() const {
    return first_moment_.floats({shard_vector_size(table_)});
  }
  [[nodiscard]] TensorView second_moment() const {
    return second_moment_.floats({shard_vector_size(table_)});
  }
  /// Updates made since the state was fresh: the exponent of Adam's bias correction.
  [[nodiscard]] std::int64_t updates() const noexcept { return updates_; }

  /// Collective. Checks, reduces, clips, updates, gathers. Before any weight changes, throws
  /// NumericalError on every rank, naming the first bad one, when a gradient is not finite, the
  /// gradients' sum overflows, a replica of the weights differs from its owner's (or did since the
  /// last comparison) or an owner's state changed since its last update.
  StepReport step(double learning_rate);

  /// Collective. Takes over a checkpoint: `weights_shard` and the moments are this rank's shard
  /// vectors; the weights are gathered from all ranks. Throws InternalError on wrong sizes, before
  /// the first collective.
  void load(std::span<const float> weights_shard, std::span<const float> first_moment,
            std::span<const float> second_moment, std::int64_t updates);

  /// Bytes of payload one step moves through reduce-scatter and through all-gather (each) at its
  /// ring optimum: (N−1)/N · 4 bytes · flat size.
  [[nodiscard]] std::uint64_t ring_payload_bytes() const;

 private:
  /// A run of the shard whose elements share a decay flag.
  struct Run {
    std::int64_t flat_begin;
    std::int64_t shard_begin;
    std::int64_t size;
    bool decay;
  };
  struct Seal {
    std::uint64_t weights;
    std::uint64_t first_moment;
    std::uint64_t second_moment;
    bool operator==(const Seal&) const = default;
  };

  void check_gradients() const;
  void check_owned_state() const;
  void hash_replicas();
  void check_replicas();
  [[nodiscard]] std::uint64_t hash_weights_of(std::span<const ShardGroup> groups,
                                              std::uint64_t seed) const;
  [[nodiscard]] Seal seal_now() const;
  [[nodiscard]] double reduce_gradients();
  void update_shard(double learning_rate, float clip_scale);
  void gather_weights();
  [[nodiscard]] std::span<float> weight_span(std::int64_t begin, std::int64_t size) const;
  [[nodiscard]] std::span<float> gradient_span(std::int64_t begin, std::int64_t size) const;

  const ParameterTable& table_;
  KernelSet& kernels_;
  const Communicator& comm_;
  OptimizerConfig config_;
  TensorView weights_;
  Buffer gradients_;
  Buffer first_moment_;
  Buffer second_moment_;
  std::vector<std::vector<ShardGroup>> groups_of_;  ///< By rank.
  std::span<const ShardGroup> groups_;              ///< This rank's.
  std::vector<Run> runs_;
  std::vector<double> squares_;  ///< Of all ranks, reused.
  /// By owner: the weights of every step since the last comparison, chained.
  std::vector<std::int64_t> replica_hashes_;
  std::vector<std::int64_t> gathered_hashes_;  ///< [ranks, owners], reused.
  std::int64_t updates_ = 0;
  std::optional<Seal> seal_;
};

}  // namespace jforge
