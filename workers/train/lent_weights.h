#pragma once

/// Compute weights lent to kernels by group: kept whole, or at stage 3 as a shard whose groups are
/// gathered into slots (sharding.h); with copies on the kernels' device if offloaded.

#include <cstdint>
#include <memory>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "model/transformer/parameter_table.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/tensor/buffer.h"
#include "workers/train/sharding.h"

namespace jforge {

/// Elements of the flat vector, or at stage 3 of a rank's shard vector.
[[nodiscard]] std::int64_t kept_size(const ParameterTable& table, const Sharding& sharding);

/// Memory for `home`; page-locked on a host from which `kernels` copy.
[[nodiscard]] Buffer buffer_at_home(std::size_t bytes, MemoryAccount& account,
                                    const KernelSet& kernels, const KernelSet& home, MemoryUse use);

/// For destructors: waits for each, even if others throw, before their memory is freed.
template <class Waits>
void wait_for_ends(const Waits& all) noexcept {
  for (const auto& each : all) {
    try {
      each.wait();
    } catch (...) {  // NOLINT(bugprone-empty-catch): who needed the result has heard of it
    }
  }
}

/// One object per rank. The caller makes all ranks gather in the same order. Not thread-safe.
class LentWeights {
 public:
  /// `kept`: compute type [kept_size], at `home`, as the collectives' tensors; must outlive the
  /// object. `use`: of copies for `kernels`, if offloaded.
  LentWeights(const ParameterTable& table, const Sharding& sharding, KernelSet& kernels,
              KernelSet& home, Collectives& collectives, MemoryAccount& account,
              const TensorView& kept, MemoryUse use);
  /// Waits for pending work.
  ~LentWeights();
  LentWeights(const LentWeights&) = delete;
  LentWeights& operator=(const LentWeights&) = delete;

  /// Collective at stage 3: starts to gather the group unless its slot holds it. If it throws, it
  /// has not started and may be repeated. Fault place: train.gather.
  void gather(std::int32_t group);
  /// See ParameterSource; at stage 3 after gather().
  [[nodiscard]] ConstTensorView lend(std::int32_t group);

  /// Marks slots and copies as stale.
  void changed();
  /// Collective below stage 3: starts to send own_block(), written on every rank.
  void share(std::int32_t group);
  /// Waits until the kept weights may be read and written.
  void wait() const;

  /// At home, kept or in its slot.
  [[nodiscard]] TensorView whole(std::int32_t group) const;
  [[nodiscard]] TensorView own_block(std::int32_t group) const;

  /// Stage 3: from now on every group is gathered again and hashed once, when lent, as in
  /// hash_replicas(); empty `sums` ends this.
  void watch(const TensorView& sums);
  /// sums[owner] += hash of this rank's replica of the owner's weights, int64 [ranks] at home.
  /// Nothing at stage 3 (see watch()).
  void hash_replicas(const TensorView& sums) const;
  /// sum += hash of this rank's own weights, int64 [1] at home.
  void hash_own(const TensorView& sum) const;

 private:
  void hash_blocks(std::int32_t group, const TensorView& sums) const;
  [[nodiscard]] std::size_t place_of(std::int32_t group) const;
  [[nodiscard]] bool offloaded() const { return kernels_.device() != home_.device(); }
  /// Copies the group, in parallel to kernels, if its copy is stale.
  [[nodiscard]] ConstTensorView bring(std::int32_t group);

  const ParameterTable& table_;
  const Sharding sharding_;
  KernelSet& kernels_;
  KernelSet& home_;
  Collectives& collectives_;
  std::vector<ShardGroup> shard_;
  TensorView kept_;
  Buffer slots_;
  Buffer copies_;  ///< Whole or slots, if offloaded.
  GroupSlots resident_;
  std::vector<std::int64_t> slot_begins_;
  std::vector<Work> work_;  ///< End of gathers, by group or (stage 3) slot.
  std::vector<bool> copy_stale_;
  std::unique_ptr<Queue> copying_;
  std::vector<Event> copied_;  ///< End of copies.
  std::vector<Event> unread_;  ///< End of the last read of a copy.
  TensorView watched_sums_;    ///< By owner; empty: nothing is watched.
  std::vector<bool> watched_;
};

}  // namespace jforge
