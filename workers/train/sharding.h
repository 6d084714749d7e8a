#pragma once

/// How training state is spread over ranks: ZeRO stages 0 to 3 (Rajbhandari et al., "ZeRO: Memory
/// Optimizations Toward Training Trillion Parameter Models", SC 2020, section 5). The only place of
/// these formulas; the parameter store allocates and moves what they say, and --dry-run prints from
/// them.
///
/// | stage | compute weights | gradients | masters and moments |
/// | ----- | --------------- | --------- | ------------------- |
/// | 0     | whole           | whole     | whole               |
/// | 1     | whole           | whole     | 1/N                 |
/// | 2     | whole           | 1/N       | 1/N                 |
/// | 3     | 1/N             | 1/N       | 1/N                 |
///
/// What is sharded passes through buffers of whole groups: one each for embedding and head, two for
/// the layers. float32 compute weights are their own masters. A frozen teacher's weights lie as the
/// compute weights do, at stage 3 with buffers of their own.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoints/shard_slices.h"
#include "model/transformer/parameter_source.h"
#include "model/transformer/parameter_table.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

struct Sharding {
  int stage = 1;  ///< 0 … 3
  DType compute = DType::float32;
  bool teacher = false;  ///< Beside them a frozen copy of the weights (lent_weights.h).
  /// Where the kernels compute on a device: everything of the table lies in host memory, and the
  /// device has copies of what it works with (device_copies()). Otherwise everything lies there.
  bool offload = false;

  [[nodiscard]] bool shards_state() const noexcept { return stage >= 1; }
  [[nodiscard]] bool shards_gradients() const noexcept { return stage >= 2; }
  [[nodiscard]] bool shards_weights() const noexcept { return stage >= 3; }
  /// Masters in memory of their own, not inside the compute weights.
  [[nodiscard]] bool separate_masters() const noexcept {
    return shards_weights() || compute != DType::float32;
  }
  /// Where all that the table names lies, for kernels on `device`.
  [[nodiscard]] Device home(Device device) const noexcept { return offload ? Device::cpu : device; }
  /// Whether a model in host memory is copied from when training begins, and not trained in place.
  [[nodiscard]] bool copies_weights(Device device) const noexcept {
    return separate_masters() || home(device) != Device::cpu;
  }
  /// Throws ConfigError naming train.zero_stage.
  void validate() const;
};

/// The ranges of every group whose optimizer state `rank` keeps, in group order; `shard_begin` is
/// the place in the rank's state vectors. At stage 0 each is a whole group, and the state vectors
/// are laid out as the flat vector.
[[nodiscard]] std::vector<ShardGroup> owned_groups(const ParameterTable& table,
                                                   const Sharding& sharding, int rank);
/// Elements of a rank's state vectors.
[[nodiscard]] std::int64_t owned_size(const ParameterTable& table, const Sharding& sharding);

/// The equal part of a whole group that is `rank`'s.
[[nodiscard]] TensorView block_of(const TensorView& whole, int rank, int ranks);

/// Buffers of whole groups, as which groups share them.
class GroupSlots {
 public:
  explicit GroupSlots(const ParameterTable& table);
  [[nodiscard]] std::size_t count() const noexcept { return sizes_.size(); }
  /// Elements of a slot: its largest group.
  [[nodiscard]] std::int64_t size(std::size_t slot) const { return sizes_[slot]; }
  [[nodiscard]] std::int64_t total_size() const;
  /// Where each slot begins when they lie one after another.
  [[nodiscard]] std::vector<std::int64_t> begins() const;
  [[nodiscard]] std::size_t slot_of(std::int32_t group) const;
  [[nodiscard]] bool holds(std::int32_t group) const { return resident_[slot_of(group)] == group; }
  /// Puts the group into its slot. True when another, or none, was there: the slot must be filled.
  bool place(std::int32_t group);
  /// What the slots hold is out of date.
  void forget();

 private:
  std::int32_t head_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int32_t> resident_;
};

/// Memory of one rank for training, bytes, without activations.
struct TrainingMemory {
  double weights = 0;        ///< Compute weights: whole, or a shard.
  double gradients = 0;      ///< float32, whole or a shard.
  double optimizer = 0;      ///< Separate masters and both moments.
  double communication = 0;  ///< Buffers of whole groups.
  double teacher = 0;        ///< A frozen teacher's weights: whole, or a shard.
  [[nodiscard]] double total() const {
    return weights + gradients + optimizer + communication + teacher;
  }
};
/// `table.shard_count()` is the number of ranks.
[[nodiscard]] TrainingMemory training_memory(const ParameterTable& table, const Sharding& sharding);

/// Bytes of the copies of weights and gradients on the device, where all else is offloaded.
[[nodiscard]] double device_copies(const ParameterTable& table, const Sharding& sharding);

/// Payload that one rank sends in an optimizer step, bytes, at the ring optimum.
struct StepPayload {
  double all_reduce = 0;
  double reduce_scatter = 0;
  double all_gather = 0;
  [[nodiscard]] double total() const { return all_reduce + reduce_scatter + all_gather; }
};
/// With f = (N−1)/N, P parameters, g = 4 bytes of a gradient, w of a weight, A micro-batches on the
/// rank that has most: stage 0: 2f·gP; 1: f(g+w)P; 2: f(A·g+w)P; 3: f·A(g+2w)P less what is still
/// in its buffer when it is asked for again (embedding and head once a step, two layers a pass). A
/// frozen teacher adds f·A·wP at stage 3, less its embedding and head, which stay in their buffers.
[[nodiscard]] StepPayload step_payload(const ParameterTable& table, const Sharding& sharding,
                                       std::int64_t micro_batches);

}  // namespace jforge
