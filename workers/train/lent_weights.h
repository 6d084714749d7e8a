#pragma once

/// Compute weights between the place where a rank keeps them and the kernels that borrow them, by
/// group: kept whole, or at stage 3 as a shard whose groups are gathered into slots (sharding.h);
/// with a copy where the kernels compute, if they are offloaded.

#include <cstdint>
#include <memory>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "model/transformer/parameter_table.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/tensor/buffer.h"
#include "workers/train/sharding.h"

namespace jforge {

/// Elements of what a rank keeps: the flat vector, or at stage 3 its shard vector.
[[nodiscard]] std::int64_t kept_size(const ParameterTable& table, const Sharding& sharding);

/// Memory where `home` computes; page-locked on a host from which `kernels` copy.
[[nodiscard]] Buffer buffer_at_home(std::size_t bytes, MemoryAccount& account,
                                    const KernelSet& kernels, const KernelSet& home, MemoryUse use);

/// Waits for each, whatever others throw: in a destructor, before the memory that they use goes.
template <class Waits>
void wait_for_ends(const Waits& all) noexcept {
  for (const auto& each : all) {
    try {
      each.wait();
    } catch (...) {  // NOLINT(bugprone-empty-catch): who needed the result has heard of it
    }
  }
}

/// One object per rank; all ranks gather in one order, which is the caller's affair
/// (ParameterStore). Not thread-safe.
class LentWeights {
 public:
  /// `kept`: compute type [kept_size], where `home` computes, the set of the collectives' memory;
  /// must outlive the object. `use`: of the copies for `kernels`, where that computes elsewhere.
  LentWeights(const ParameterTable& table, const Sharding& sharding, KernelSet& kernels,
              KernelSet& home, Collectives& collectives, MemoryAccount& account,
              const TensorView& kept, MemoryUse use);
  /// Waits for what is under way.
  ~LentWeights();
  LentWeights(const LentWeights&) = delete;
  LentWeights& operator=(const LentWeights&) = delete;

  /// Collective at stage 3: begins to gather the group, if it is not there. One that throws has not
  /// begun, and may be called again. Fault place: train.gather, before what can throw.
  void gather(std::int32_t group);
  /// The group as ParameterSource lends it; at stage 3 after gather().
  [[nodiscard]] ConstTensorView lend(std::int32_t group);

  /// What is kept has changed, or is about to be read anew: slots and copies are stale.
  void changed();
  /// Collective below stage 3, after own_block() was written on every rank: begins to give it to
  /// the others.
  void share(std::int32_t group);
  /// Until what is kept may be read and written.
  void wait() const;

  /// At home: the whole group, kept or in its slot.
  [[nodiscard]] TensorView whole(std::int32_t group) const;
  /// This rank's block of it, as kept.
  [[nodiscard]] TensorView own_block(std::int32_t group) const;

  /// At stage 3 groups are hashed as they are lent from now on, each once, after being gathered
  /// anew, as hash_replicas() does; no longer where `sums` is empty.
  void watch(const TensorView& sums);
  /// sums[owner] += hash of what this rank holds of the weights that the owner keeps, int64 [ranks]
  /// at home. At stage 3 watch() does.
  void hash_replicas(const TensorView& sums) const;
  /// sum += hash of the same as this rank itself keeps it, int64 [1] at home.
  void hash_own(const TensorView& sum) const;

 private:
  void hash_blocks(std::int32_t group, const TensorView& sums) const;
  [[nodiscard]] std::size_t place_of(std::int32_t group) const;
  [[nodiscard]] bool offloaded() const { return kernels_.device() != home_.device(); }
  /// The group's copy, brought beside what the kernels do, if it is stale.
  [[nodiscard]] ConstTensorView bring(std::int32_t group);

  const ParameterTable& table_;
  const Sharding sharding_;
  KernelSet& kernels_;
  KernelSet& home_;
  Collectives& collectives_;
  std::vector<ShardGroup> shard_;
  TensorView kept_;
  Buffer slots_;   ///< At stage 3.
  Buffer copies_;  ///< Whole, or slots, for the kernels where they compute elsewhere.
  GroupSlots resident_;
  std::vector<std::int64_t> slot_begins_;
  std::vector<Work> work_;          ///< By group, at stage 3 by slot: until it may be read.
  std::vector<bool> copy_stale_;    ///< Likewise.
  std::unique_ptr<Queue> copying_;  ///< Where they compute elsewhere.
  std::vector<Event> copied_;       ///< Until a copy may be read, and what it is of overwritten,
  std::vector<Event> unread_;       ///< and until the copy may be overwritten.
  TensorView watched_sums_;         ///< By owner; empty while nothing is watched.
  std::vector<bool> watched_;       ///< By group.
};

}  // namespace jforge
