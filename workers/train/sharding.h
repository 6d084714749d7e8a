#pragma once

/// ZeRO stages 0 to 3 (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
/// Parameter Models", SC 2020, section 5). The only place of these formulas, also for --dry-run.
///
/// | stage | compute weights | gradients | masters and moments |
/// | ----- | --------------- | --------- | ------------------- |
/// | 0     | whole           | whole     | whole               |
/// | 1     | whole           | whole     | 1/N                 |
/// | 2     | whole           | 1/N       | 1/N                 |
/// | 3     | 1/N             | 1/N       | 1/N                 |
///
/// Sharded tensors pass through whole-group buffers: one each for embedding and head, two for
/// layers. float32 compute weights are their own masters. A frozen teacher is stored like the
/// compute weights, at stage 3 with its own buffers.

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
  bool teacher = false;  ///< Keep a frozen copy of the weights.
  /// Keep everything in the table in host memory, with copies on the kernels' device
  /// (device_copies()).
  bool offload = false;

  [[nodiscard]] bool shards_state() const noexcept { return stage >= 1; }
  [[nodiscard]] bool shards_gradients() const noexcept { return stage >= 2; }
  [[nodiscard]] bool shards_weights() const noexcept { return stage >= 3; }
  [[nodiscard]] bool separate_masters() const noexcept {
    return shards_weights() || compute != DType::float32;
  }
  /// Device of the table's memory for kernels on `device`.
  [[nodiscard]] Device home(Device device) const noexcept { return offload ? Device::cpu : device; }
  /// Throws ConfigError naming train.zero_stage.
  void validate() const;
};

/// Ranges of every group whose optimizer state `rank` keeps, in group order; `shard_begin`:
/// position in the state vectors. At stage 0 whole groups, laid out as the flat vector.
[[nodiscard]] std::vector<ShardGroup> owned_groups(const ParameterTable& table,
                                                   const Sharding& sharding, int rank);
/// Elements of a rank's state vectors.
[[nodiscard]] std::int64_t owned_size(const ParameterTable& table, const Sharding& sharding);

/// `rank`'s equal part of a whole group.
[[nodiscard]] TensorView block_of(const TensorView& whole, int rank, int ranks);

/// Whole-group buffers, shared by groups.
class GroupSlots {
 public:
  explicit GroupSlots(const ParameterTable& table);
  [[nodiscard]] std::size_t count() const noexcept { return sizes_.size(); }
  [[nodiscard]] std::int64_t size(std::size_t slot) const { return sizes_[slot]; }
  [[nodiscard]] std::int64_t total_size() const;
  /// Offsets of contiguous slots.
  [[nodiscard]] std::vector<std::int64_t> begins() const;
  [[nodiscard]] std::size_t slot_of(std::int32_t group) const;
  [[nodiscard]] bool holds(std::int32_t group) const { return resident_[slot_of(group)] == group; }
  /// True if the slot must be filled.
  bool place(std::int32_t group);
  void forget();

 private:
  std::int32_t head_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int32_t> resident_;
};

/// Bytes per rank, without activations.
struct TrainingMemory {
  double weights = 0;        ///< Whole or shard.
  double gradients = 0;      ///< float32, whole or shard.
  double optimizer = 0;      ///< Separate masters and both moments.
  double communication = 0;  ///< Whole-group buffers.
  double teacher = 0;        ///< Whole or shard.
  [[nodiscard]] double total() const {
    return weights + gradients + optimizer + communication + teacher;
  }
};
/// Number of ranks: `table.shard_count()`.
[[nodiscard]] TrainingMemory training_memory(const ParameterTable& table, const Sharding& sharding);

/// Bytes on the device if everything else is offloaded.
[[nodiscard]] double device_copies(const ParameterTable& table, const Sharding& sharding);

/// Bytes sent by one rank in an optimizer step, at the ring optimum.
struct StepPayload {
  double all_reduce = 0;
  double reduce_scatter = 0;
  double all_gather = 0;
  double across = 0;  ///< To other copies of the state (runtime/comm/rank_grid.h).
  [[nodiscard]] double within() const { return all_reduce + reduce_scatter + all_gather; }
  [[nodiscard]] double total() const { return within() + across; }
};
/// f = (N−1)/N, P parameters, g = 4 bytes per gradient, w per weight, A micro-batches (maximum over
/// ranks). Stage 0: 2f·gP; 1: f(g+w)P; 2: f(A·g+w)P; 3: f·A(g+2w)P minus groups still in their
/// buffers (embedding and head once a step, two layers a pass). At stage 3 a frozen teacher adds
/// f·A·wP without embedding and head, which stay in their buffers. N is a copy's ranks; C `copies`
/// add 2·(C−1)/C of the gradients that a rank owns.
[[nodiscard]] StepPayload step_payload(const ParameterTable& table, const Sharding& sharding,
                                       std::int64_t micro_batches, int copies = 1);

}  // namespace jforge
