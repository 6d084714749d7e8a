#pragma once

/// Memory and communication of ZeRO (sharding.h): where parameters and gradients lie and when they
/// move between ranks. Collectives overlap with arithmetic: a group's gradient is reduced after its
/// backward (stages 0 and 1: in the step's last micro-batch); stage 3 gathers the next group while
/// the current one computes; lower stages gather updated weights while the next step begins.

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
/// A step: begin_step(), a forward and a backward pass per micro-batch, finish_reductions(), update
/// of the masters, publish(), clear_gradients(). All ranks request groups in the same order
/// (PassUses), a rank without samples with empty batches. A rank that fails within the passes calls
/// abandon() to join the remaining collectives. The step's gradients are then worthless on every
/// rank, so all must agree to stop.
class ParameterStore final : public ParameterSource, public GradientSink {
 public:
  /// `weights`: the model, float32 [flat_size] on the host. If Sharding::copies_weights() it is
  /// copied and may be freed; otherwise it is updated in place and must outlive the object.
  /// `collectives`: for tensors at home().
  ParameterStore(const ParameterTable& table, const Sharding& sharding, KernelSet& kernels,
                 Collectives& collectives, MemoryAccount& account, TensorView weights);
  /// Waits for pending work.
  ~ParameterStore() override;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  [[nodiscard]] const Sharding& sharding() const noexcept { return sharding_; }
  /// Kernels for the memory that this rank keeps: the store's own, or the host's if offloaded.
  [[nodiscard]] KernelSet& home() const noexcept { return home_; }
  /// The frozen teacher (Sharding::teacher): the constructor's `weights`. In each micro-batch its
  /// forward comes before the model's, and PassUses::teacher_head before each backward.
  [[nodiscard]] ParameterSource& teacher() { return teacher_; }

  // ---- a step
  struct StepShape {
    std::int64_t micro_batches = 1;  ///< Maximum over ranks; > 0.
    /// Backward passes of one micro-batch that only measure gradients, before its own. At stage 3
    /// both are equal on all ranks.
    int measured_passes = 0;
    std::int64_t measured_micro_batch = 0;  ///< 0-based.
    /// Stage 3: hashes of gathered weights (hash_replicas()) are added here; set on all ranks or
    /// none.
    TensorView replica_hashes = {};
  };
  /// Fault place: train.begin; abandon() may follow.
  void begin_step(const StepShape& shape);
  [[nodiscard]] ConstTensorView acquire(std::int32_t group) override;
  void release(std::int32_t group) override;
  [[nodiscard]] TensorView open(std::int32_t group) override;
  /// At stages 2 and 3, because each micro-batch's gradient is reduced separately.
  [[nodiscard]] bool undefined(std::int32_t /*group*/) const override {
    return sharding_.shards_gradients();
  }
  /// Fault place: train.reduce, before each reduction.
  void ready(std::int32_t group) override;
  /// The next backward pass only measures: adds Σ x² of its gradients to `squares`, float64 [1] on
  /// the kernels' device, and drops them.
  void measure_next_backward(const TensorView& squares) { measured_ = squares; }
  /// Call after an exception: enqueues this rank's remaining collectives of the step, so that no
  /// other rank waits for them. Does not wait. Throws if the step has not begun. Fault place:
  /// train.abandon.
  void abandon();
  /// Call after the passes: makes home's queue wait for the sum over ranks and micro-batches in
  /// owned_gradient(), and fetches the data of expect_finite_gradients().
  void fetch_reductions();
  /// Requires synchronize(). Throws NumericalError naming `update` and the first tensor for which
  /// this rank's gradient is not finite.
  void expect_finite_gradients(std::int64_t update) const;
  /// fetch_reductions(), synchronize() and expect_finite_gradients().
  void finish_reductions(std::int64_t update);
  /// Wait for all work in the kernels' and home's queues, or for `place` only; report waiting if
  /// that needs collectives. synchronize() throws CommError if a collective of the step failed.
  void synchronize() const;
  void wait(const Event& place) const;

  // ---- what this rank keeps
  [[nodiscard]] std::span<const ShardGroup> owned() const noexcept { return owned_; }
  /// float32, at home.
  [[nodiscard]] TensorView master(const ShardGroup& owned) const;
  [[nodiscard]] TensorView owned_gradient(const ShardGroup& owned) const;
  /// The master rounded to bfloat16; empty for float32 compute weights.
  [[nodiscard]] TensorView rounded_master(const ShardGroup& owned) const;
  /// Makes changed (and rounded) masters the compute weights of all ranks.
  void publish();
  void clear_gradients();

  // ---- whole weights
  /// All masters of this rank, float32, at home: the flat vector, or the shard vector if they are
  /// separate and the stage is at least 1.
  [[nodiscard]] ConstTensorView masters() const;
  /// Loads and publishes `shard`, this rank's shard vector of all groups
  /// (checkpoints/shard_slices.h).
  void load(std::span<const float> shard);
  /// Collective. Gathers all ranks' blocks into `whole`, float32 at home, in the order of home's
  /// queue. `block`: this rank's. finish_gathers() must follow.
  void gather_blocks(const ConstTensorView& block, const TensorView& whole);
  /// Waits for home's queue. Throws CommError if a gather failed.
  void finish_gathers();
  /// Collective, between steps. Gathers all masters into `flat`, float32 [flat_size] on the host,
  /// which may be the vector that the store updates in place.
  void gather_masters(TensorView flat);
  /// Waits until a vector that is updated in place holds the published weights.
  void wait_for_weights();

  // ---- integrity
  /// sums[owner] += hash of this rank's replica of the owner's weights, including the teacher's;
  /// int64 [ranks] at home. At stage 3, StepShape::replica_hashes replaces this.
  void hash_replicas(const TensorView& sums) const;
  /// sum += hash of this rank's own weights or of its part of the teacher (none: nothing), int64
  /// [1] at home.
  void hash_weights(const TensorView& sum) const { weights_->hash_own(sum); }
  void hash_teacher(const TensorView& sum) const;

 private:
  struct ScriptedUse {
    GroupUse use;
    bool reduces;     ///< ready() starts a reduction.
    bool of_teacher;  ///< acquire() is for teacher().
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
  /// Copies `weights`, float32 [flat_size], into `lent`.
  void fill(LentWeights& lent, const ConstTensorView& weights);
  /// Copies host values, part of a group, to `target` at home.
  void bring(std::int32_t group, const ConstTensorView& values, const TensorView& target);
  /// Gathers the group of a scripted acquire() and the next one in the script.
  void gather(const ScriptedUse& scripted);
  void reduce(std::int32_t group);
  /// Index into gradients_work_ and copied_.
  [[nodiscard]] std::size_t gradient_place(std::int32_t group) const {
    return sharding_.shards_gradients() ? slots_.slot_of(group) : static_cast<std::size_t>(group);
  }
  void fold(std::size_t slot);
  void measure(std::int32_t group);
  void sum_squares_of_tensors(std::int32_t group);
  /// Accumulator for the kernels, and reduction buffer at home. Between steps the latter is free
  /// for other uses; stages 0 and 1 must leave zeros there.
  [[nodiscard]] TensorView compute_gradient(std::int32_t group) const;
  [[nodiscard]] TensorView home_gradient(std::int32_t group) const;
  /// Whether the kernels' queue waits for collectives.
  [[nodiscard]] bool needs_others() const {
    return home_.device() != Device::cpu && collectives_.size() > 1;
  }
  /// For waits for home's or the kernels' queue.
  [[nodiscard]] std::optional<WaitingForOthers> as_waiting() const;
  [[nodiscard]] bool offloaded() const { return kernels_.device() != home_.device(); }

  const ParameterTable& table_;
  const Sharding sharding_;
  KernelSet& kernels_;
  KernelSet& home_;
  Collectives& collectives_;
  const PassUses uses_;
  std::vector<ShardGroup> owned_;
  std::vector<ShardGroup> shard_;  ///< Of every group.

  TensorView flat_;         ///< Weights that are also masters: the caller's, or a copy on a device.
  Buffer compute_weights_;  ///< Whole or shard; empty if the caller's or the masters serve.
  Buffer masters_;          ///< [owned_size], if separate.
  std::optional<LentWeights> weights_;
  Buffer teacher_weights_;  ///< Same layout as the compute weights.
  std::optional<LentWeights> frozen_;
  Teacher teacher_{*this};
  Buffer gradients_;        ///< Whole, or slots.
  Buffer gradient_copies_;  ///< For the kernels, if offloaded.
  Buffer owned_gradients_;  ///< [owned_size], if gradients are sharded.
  GroupSlots slots_;        ///< Of gradients.
  std::vector<std::int64_t> slot_begins_;

  bool begun_ = false;  ///< script_ is complete.
  std::vector<ScriptedUse> script_;
  std::size_t cursor_ = 0;            ///< Next use in script_.
  TensorView measured_;               ///< Empty while gradients are kept.
  std::vector<Work> gradients_work_;  ///< By group (stages 0, 1) or slot.
  std::unique_ptr<Queue> copying_;    ///< Copies gradients home, if offloaded.
  std::vector<Event> copied_;         ///< End of these copies.
  std::vector<Work> gathers_;         ///< From gather_blocks().
  std::vector<std::int32_t> folds_;   ///< By slot: group with an unfolded reduced block, or −1.
  std::vector<bool> folded_;          ///< By group: owned_gradients_ holds earlier micro-batches.
  ResultSums tensor_squares_;         ///< Of this rank's gradient, by table entry.
};

}  // namespace jforge
