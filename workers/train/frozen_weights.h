#pragma once

/// A copy of the weights that never changes: the frozen teacher's. Whole on every rank, or at stage
/// 3 a shard whose groups are gathered when they are lent (sharding.h).

#include <cstdint>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "model/transformer/parameter_table.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/tensor/buffer.h"
#include "workers/train/sharding.h"

namespace jforge {

/// One object per rank; at stage 3 all ranks gather in one order, which is the caller's affair
/// (ParameterStore). Not thread-safe.
class FrozenWeights {
 public:
  /// `weights`: float32 [flat_size] on the host, equal on all ranks; copied in the compute type, so
  /// that it may go.
  FrozenWeights(const ParameterTable& table, const Sharding& sharding, KernelSet& kernels,
                Collectives& collectives, MemoryAccount& account, ConstTensorView weights);
  /// Waits for what is under way.
  ~FrozenWeights();
  FrozenWeights(const FrozenWeights&) = delete;
  FrozenWeights& operator=(const FrozenWeights&) = delete;

  /// Collective where weights are sharded: begins to gather the group, if it is not there.
  void gather(std::int32_t group);
  /// The group as ParameterSource lends it; after gather().
  [[nodiscard]] ConstTensorView lend(std::int32_t group);

 private:
  [[nodiscard]] TensorView host_group(std::int32_t group) const;

  const ParameterTable& table_;
  const Sharding sharding_;
  KernelSet& kernels_;
  Collectives& collectives_;
  std::vector<ShardGroup> shard_;
  Buffer weights_;  ///< Whole or shard.
  Buffer slots_;    ///< At stage 3.
  Buffer device_;   ///< Whole, or slots, of the kernels' device.
  std::vector<std::int64_t> slot_begins_;
  GroupSlots resident_;
  std::vector<Work> gathering_;        ///< By slot.
  std::vector<bool> on_device_stale_;  ///< By group, at stage 3 by slot.
};

}  // namespace jforge
