#pragma once

/// Memory and communication of ZeRO (sharding.h). Collectives overlap with arithmetic: a group's
/// gradient is reduced after its backward (stages 0 and 1: in the last micro-batch); stage 3
/// gathers the next group while the current one computes; lower stages gather updated weights while
/// the next step begins.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "model/kernels/result_sums.h"
#include "model/transformer/parameter_source.h"
#include "model/transformer/parameter_table.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/phase_clock.h"
#include "runtime/tensor/buffer.h"
#include "workers/train/lent_weights.h"
#include "workers/train/sharding.h"

namespace jforge {

/// One object per rank and round; all ranks act together. Not thread-safe.
///
/// A step: begin_step(), forward and backward per micro-batch, finish_reductions(), update of the
/// masters, publish(), clear_gradients(). All ranks request groups in the same order (PassUses),
/// those without samples with empty batches. A rank that fails within the passes calls abandon() to
/// join the remaining collectives; the step's gradients are then worthless everywhere, so all must
/// agree to stop.
class ParameterStore final : public ParameterSource, public GradientSink {
 public:
  /// Collective, unless `shard` is empty. `shard`: this rank's shard vector of the model; if empty,
  /// weights are zero until load(). `collectives`: for tensors at home(), within a copy of the
  /// state (runtime/comm/rank_grid.h). `across`: between copies, if there are several.
  ParameterStore(const ParameterTable& table, const Sharding& sharding, KernelSet& kernels,
                 Collectives& collectives, MemoryAccount& account, std::span<const float> shard,
                 Collectives* across = nullptr);
  /// Waits for pending work.
  ~ParameterStore() override;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  [[nodiscard]] const Sharding& sharding() const noexcept { return sharding_; }
  /// Kernels for this rank's memory: the store's own, or the host's if offloaded.
  [[nodiscard]] KernelSet& home() const noexcept { return home_; }
  /// The frozen teacher: the constructor's weights. In each micro-batch its forward precedes the
  /// model's, and PassUses::teacher_head each backward.
  [[nodiscard]] ParameterSource& teacher() { return teacher_; }

  // ---- a step
  struct StepShape {
    std::int64_t micro_batches = 1;  ///< Maximum over ranks; > 0.
    /// Backward passes of one micro-batch that only measure gradients, before its own. At stage 3
    /// equal on all ranks, like measured_micro_batch.
    int measured_passes = 0;
    std::int64_t measured_micro_batch = 0;  ///< 0-based.
    /// Stage 3: hash_replicas() of gathered weights; set on all ranks or none.
    TensorView replica_hashes = {};
  };
  /// Fault place: train.begin; abandon() may follow.
  void begin_step(const StepShape& shape);
  [[nodiscard]] ConstTensorView acquire(std::int32_t group) override;
  void release(std::int32_t group) override;
  [[nodiscard]] TensorView open(std::int32_t group) override;
  /// Stages 2 and 3 reduce each micro-batch's gradient separately.
  [[nodiscard]] bool undefined(std::int32_t /*group*/) const override {
    return sharding_.shards_gradients();
  }
  /// Fault place: train.reduce, before each reduction.
  void ready(std::int32_t group) override;
  /// The next backward pass adds Σ x² of its gradients to `squares`, float64 [1] on the kernels'
  /// device, and drops them.
  void measure_next_backward(const TensorView& squares) { measured_ = squares; }
  /// After an exception: enqueues this rank's remaining collectives of the step without waiting, so
  /// that no other rank waits for them. Throws if the step has not begun. Fault place:
  /// train.abandon.
  void abandon();
  /// After the passes: home's queue waits for the sum over ranks and micro-batches in
  /// owned_gradient(). Fetches the data of expect_finite_gradients().
  void fetch_reductions();
  /// Requires synchronize(). Throws NumericalError naming `update` and the first tensor whose
  /// gradient on this rank is not finite.
  void expect_finite_gradients(std::int64_t update) const;
  /// Includes synchronize() and expect_finite_gradients().
  void finish_reductions(std::int64_t update);
  /// Wait for the kernels' and home's queues, or for `place`; report waiting if collectives are
  /// involved. synchronize() throws CommError if one of the step's failed.
  void synchronize() const;
  void wait(const Event& place) const;

  // ---- what this rank keeps
  [[nodiscard]] std::span<const ShardGroup> owned() const noexcept { return owned_; }
  /// float32, at home.
  [[nodiscard]] TensorView master(const ShardGroup& owned) const;
  [[nodiscard]] TensorView owned_gradient(const ShardGroup& owned) const;
  /// bfloat16 copy of the master; empty for float32 compute weights.
  [[nodiscard]] TensorView rounded_master(const ShardGroup& owned) const;
  /// Makes the updated masters the compute weights of all ranks.
  void publish();
  void clear_gradients();

  // ---- whole weights
  /// This rank's masters, float32, at home: the flat vector, or its shard vector if they are
  /// separate and the stage is at least 1.
  [[nodiscard]] ConstTensorView masters() const;
  /// Copies this rank's block of a group's masters to `target`, float32 on the host.
  void copy_own(std::int32_t group, const TensorView& target) const;
  /// Collective. Loads and publishes this rank's shard vector (checkpoints/shard_slices.h).
  void load(std::span<const float> shard);
  /// Collective. Gathers every rank's `block` into `whole`, float32 at home, in the order of home's
  /// queue. finish_gathers() must follow.
  void gather_blocks(const ConstTensorView& block, const TensorView& whole);
  /// Waits for home's queue. Throws CommError if a gather failed.
  void finish_gathers();
  /// Waits until the published weights have arrived.
  void wait_for_weights() const { weights_->wait(); }

  // ---- integrity
  /// sums[owner] += hash of this rank's replica of the owner's weights and teacher, int64 [ranks]
  /// at home. At stage 3, StepShape::replica_hashes replaces this.
  void hash_replicas(const TensorView& sums) const;
  /// sum += hash of this rank's own weights or teacher (if any), int64 [1] at home.
  void hash_weights(const TensorView& sum) const { weights_->hash_own(sum); }
  void hash_teacher(const TensorView& sum) const;

 private:
  struct ScriptedUse {
    GroupUse use;
    bool reduces;
    bool of_teacher;
  };
  class Teacher final : public ParameterSource {
   public:
    explicit Teacher(ParameterStore& store) : store_(store) {}
    [[nodiscard]] ConstTensorView acquire(std::int32_t group) override {
      return store_.acquire_of_teacher(group);
    }
    void release(std::int32_t /*group*/) override {}

   private:
    ParameterStore& store_;
  };
  [[nodiscard]] const ParameterGroup& group_of(std::int32_t group) const {
    return table_.groups()[static_cast<std::size_t>(group)];
  }
  void expect_next(GroupUse::Kind kind, std::int32_t group, bool of_teacher = false);
  [[nodiscard]] ConstTensorView acquire_of_teacher(std::int32_t group);
  void write_script(const StepShape& shape);
  /// Gathers the group of a scripted acquire() and the next one.
  void gather(const ScriptedUse& scripted);
  void reduce(std::int32_t group);
  /// Enqueues the sums of owned gradients over the copies, once a step.
  void reduce_across();
  [[nodiscard]] std::size_t gradient_place(std::int32_t group) const {
    return sharding_.shards_gradients() ? slots_.slot_of(group) : static_cast<std::size_t>(group);
  }
  void fold(std::size_t slot);
  void measure(std::int32_t group);
  void sum_squares_of_tensors(std::int32_t group);
  /// Accumulator for the kernels, and reduction buffer at home. The latter is free between steps;
  /// stages 0 and 1 must leave zeros there.
  [[nodiscard]] TensorView compute_gradient(std::int32_t group) const;
  [[nodiscard]] TensorView home_gradient(std::int32_t group) const;
  /// Whether the kernels' queue waits for collectives.
  [[nodiscard]] bool needs_others() const {
    return home_.device() != Device::cpu && collectives_.size() > 1;
  }
  [[nodiscard]] std::optional<WaitingForOthers> as_waiting() const;
  [[nodiscard]] bool offloaded() const { return kernels_.device() != home_.device(); }

  const ParameterTable& table_;
  const Sharding sharding_;
  KernelSet& kernels_;
  KernelSet& home_;
  Collectives& collectives_;
  Collectives* const across_;
  const PassUses uses_;
  std::vector<ShardGroup> owned_;
  std::vector<ShardGroup> shard_;  ///< All groups.

  TensorView flat_;         ///< Compute weights that are masters.
  Buffer compute_weights_;  ///< Whole or shard; empty if separate masters serve.
  Buffer masters_;          ///< [owned_size], if separate.
  std::optional<LentWeights> weights_;
  Buffer teacher_weights_;  ///< Same layout as the compute weights.
  std::optional<LentWeights> frozen_;
  Teacher teacher_{*this};
  Buffer gradients_;        ///< Whole, or slots.
  Buffer gradient_copies_;  ///< If offloaded.
  Buffer owned_gradients_;  ///< [owned_size], if sharded.
  GroupSlots slots_;        ///< For gradients.
  std::vector<std::int64_t> slot_begins_;

  bool begun_ = false;  ///< script_ is complete.
  std::vector<ScriptedUse> script_;
  std::size_t cursor_ = 0;            ///< Next use in script_.
  TensorView measured_;               ///< Empty while gradients are kept.
  std::vector<Work> gradients_work_;  ///< By group (stages 0, 1) or slot.
  bool crossed_ = false;              ///< reduce_across() has begun in this step.
  std::vector<Work> across_work_;     ///< By group.
  std::unique_ptr<Queue> copying_;
  std::vector<Event> copied_;        ///< End of these copies.
  std::vector<Work> gathers_;        ///< From gather_blocks().
  std::vector<std::int32_t> folds_;  ///< By slot: group with an unfolded reduced block, or −1.
  std::vector<bool> folded_;         ///< By group: owned_gradients_ holds earlier micro-batches.
  ResultSums tensor_squares_;        ///< By table entry, for this rank's gradient.
};

}  // namespace jforge
