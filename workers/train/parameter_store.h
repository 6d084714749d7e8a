#pragma once

/// Where parameters and gradients lie between their loans, and what moves over the ranks meanwhile:
/// the memory side of ZeRO (sharding.h). Collectives run beside the arithmetic:
/// - a group's gradient is reduced as soon as its backward has ended (stages 0 and 1: of the step's
/// last micro-batch),
/// - at stage 3 the next group is gathered while the present one is at work,
/// - below, updated weights are gathered while the next step begins.

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

/// One object per rank and round; all ranks together. Not thread-safe.
///
/// A step: begin_step(), then for each micro-batch a forward and a backward pass, then
/// finish_reductions(), the update of masters, publish(), clear_gradients(). All ranks ask for
/// groups in the same order (PassUses), a rank without samples with empty batches. A rank that
/// fails within the passes calls abandon(), which keeps its promises to the others; the step's
/// gradients are worthless then on every rank, so all must agree to stop.
class ParameterStore final : public ParameterSource, public GradientSink {
 public:
  /// `weights`: float32 [flat_size] on the host, the model. Unless Sharding::copies_weights() it is
  /// used and updated in place and must outlive the object; otherwise it is copied from and may go.
  /// `collectives`: of tensors where home() computes.
  ParameterStore(const ParameterTable& table, const Sharding& sharding, KernelSet& kernels,
                 Collectives& collectives, MemoryAccount& account, TensorView weights);
  /// Waits for what is under way.
  ~ParameterStore() override;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  [[nodiscard]] const Sharding& sharding() const noexcept { return sharding_; }
  /// The kernels for what this rank keeps: the store's own, or the host's where it is offloaded.
  [[nodiscard]] KernelSet& home() const noexcept { return home_; }
  /// Lends the frozen teacher (Sharding::teacher): `weights` of the constructor, for ever. In each
  /// micro-batch a forward pass of it comes before the model's own, and PassUses::teacher_head
  /// before each backward pass.
  [[nodiscard]] ParameterSource& teacher() { return teacher_; }

  // ---- a step
  // ------------------------------------------------------------------------------------
  struct StepShape {
    std::int64_t micro_batches = 1;  ///< The most that any rank has; > 0.
    /// Backward passes of one micro-batch whose gradients are only measured, before its own. At
    /// stage 3 both are equal on all ranks.
    int measured_passes = 0;
    std::int64_t measured_micro_batch = 0;  ///< Counted from 0.
    /// Where what is gathered at stage 3 is hashed (hash_replicas()), given on all ranks or none.
    TensorView replica_hashes = {};
  };
  /// Fault place: train.begin, where abandon() can follow.
  void begin_step(const StepShape& shape);
  [[nodiscard]] ConstTensorView acquire(std::int32_t group) override;
  void release(std::int32_t group) override;
  [[nodiscard]] TensorView open(std::int32_t group) override;
  /// At stages 2 and 3, where each micro-batch's gradient is reduced by itself.
  [[nodiscard]] bool undefined(std::int32_t /*group*/) const override {
    return sharding_.shards_gradients();
  }
  /// Fault place: train.reduce, before each reduction.
  void ready(std::int32_t group) override;
  /// The next backward pass's gradients are measured and dropped: their Σ x² is added to `squares`,
  /// float64 [1] on the kernels' device.
  void measure_next_backward(const TensorView& squares) { measured_ = squares; }
  /// After an exception: asks for everything that this rank had still to ask for in the step, so
  /// that no other rank waits for it. Does not wait itself. Throws where that is not known, as the
  /// step has not begun. Fault place: train.abandon.
  void abandon();
  /// After the passes: from here on home's queue sees in owned_gradient() the sum over all ranks
  /// and micro-batches. Asks for what expect_finite_gradients() looks at.
  void fetch_reductions();
  /// After synchronize(). Throws NumericalError naming the first tensor of which this rank gave a
  /// gradient that is not finite, and `update`, which it was for.
  void expect_finite_gradients(std::int64_t update) const;
  /// Both.
  void finish_reductions(std::int64_t update);
  /// Until all that the kernels' and home's queues were given is done, or only what comes before
  /// `place` in the former. Where that needs collectives, as one who waits for others. The former
  /// throws CommError where a collective of the step failed.
  void synchronize() const;
  void wait(const Event& place) const;

  // ---- what this rank keeps
  // ----------------------------------------------------------------------
  [[nodiscard]] std::span<const ShardGroup> owned() const noexcept { return owned_; }
  /// float32, at home.
  [[nodiscard]] TensorView master(const ShardGroup& owned) const;
  [[nodiscard]] TensorView owned_gradient(const ShardGroup& owned) const;
  /// What the master is rounded to, bfloat16; empty where masters are lent themselves.
  [[nodiscard]] TensorView rounded_master(const ShardGroup& owned) const;
  /// Masters were changed, and rounded: makes them the compute weights of all ranks.
  void publish();
  void clear_gradients();

  // ---- whole weights
  // -----------------------------------------------------------------------------
  /// In which every master of this rank lies, float32, at home: the flat vector, or from stage 1
  /// on, where they are separate, its shard vector. What a checkpoint is written from.
  [[nodiscard]] ConstTensorView masters() const;
  /// Takes over `shard`, this rank's shard vector of every group (checkpoints/shard_slices.h), and
  /// publishes.
  void load(std::span<const float> shard);
  /// Collective. `whole` at home, float32, becomes all ranks' blocks, of which this rank gives
  /// `block`; in the order of home's queue. finish_gathers() follows.
  void gather_blocks(const ConstTensorView& block, const TensorView& whole);
  /// Waits for home's queue. Throws CommError where one of them failed.
  void finish_gathers();
  /// Collective, between steps. The masters of all ranks as a flat vector, float32 [flat_size] on
  /// the host; `flat` may be the vector that the store works in.
  void gather_masters(TensorView flat);
  /// Until the vector given to the constructor holds what publish() promised, where it is used in
  /// place.
  void wait_for_weights();

  // ---- integrity
  // ---------------------------------------------------------------------------------
  /// sums[owner] += hash of what this rank holds of the weights that the owner keeps, the frozen
  /// teacher's included: int64 [ranks] at home. At stage 3 a step given them has done so.
  void hash_replicas(const TensorView& sums) const;
  /// sum += hash of the same as this rank itself keeps it, int64 [1] at home; nothing of the frozen
  /// teacher where there is none.
  void hash_weights(const TensorView& sum) const { weights_->hash_own(sum); }
  void hash_teacher(const TensorView& sum) const;

 private:
  struct ScriptedUse {
    GroupUse use;
    bool reduces;     ///< This ready() starts a reduction.
    bool of_teacher;  ///< This acquire() is of teacher().
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
  /// `weights`, float32 [flat_size], as they are kept to be lent.
  void fill(LentWeights& lent, const ConstTensorView& weights);
  /// `target`, at home, = values of the host, part of a group.
  void bring(std::int32_t group, const ConstTensorView& values, const TensorView& target);
  /// The group of a scripted acquire(), then the next that the script has.
  void gather(const ScriptedUse& scripted);
  void reduce(std::int32_t group);
  /// Where gradients_work_ and copied_ have a group.
  [[nodiscard]] std::size_t gradient_place(std::int32_t group) const {
    return sharding_.shards_gradients() ? slots_.slot_of(group) : static_cast<std::size_t>(group);
  }
  void fold(std::size_t slot);
  void measure(std::int32_t group);
  void sum_squares_of_tensors(std::int32_t group);
  /// Where a group's gradient adds up, for the kernels, and where it is reduced, at home. Between
  /// steps the latter is free for other uses; stages 0 and 1 leave zeros there.
  [[nodiscard]] TensorView compute_gradient(std::int32_t group) const;
  [[nodiscard]] TensorView home_gradient(std::int32_t group) const;
  /// Whether the kernels' queue waits for collectives.
  [[nodiscard]] bool needs_others() const {
    return home_.device() != Device::cpu && collectives_.size() > 1;
  }
  /// For a wait for home's queue or the kernels'.
  [[nodiscard]] std::optional<WaitingForOthers> as_waiting() const;
  [[nodiscard]] bool offloaded() const { return kernels_.device() != home_.device(); }

  const ParameterTable& table_;
  const Sharding sharding_;
  KernelSet& kernels_;
  KernelSet& home_;
  Collectives& collectives_;
  const PassUses uses_;
  std::vector<ShardGroup> owned_;
  std::vector<ShardGroup> shard_;  ///< Of every group, whatever is owned.

  TensorView flat_;         ///< Weights that are masters too: the caller's, or whole on a device.
  Buffer compute_weights_;  ///< Whole or shard, where they are not the caller's or the masters.
  Buffer masters_;          ///< [owned_size], where separate.
  std::optional<LentWeights> weights_;
  Buffer teacher_weights_;  ///< As the compute weights are kept.
  std::optional<LentWeights> frozen_;
  Teacher teacher_{*this};
  Buffer gradients_;        ///< Whole, or slots.
  Buffer gradient_copies_;  ///< The kernels', where they compute elsewhere.
  Buffer owned_gradients_;  ///< [owned_size], where gradients are sharded.
  GroupSlots slots_;        ///< Of gradients.
  std::vector<std::int64_t> slot_begins_;

  bool begun_ = false;  ///< A step, whose script is whole.
  std::vector<ScriptedUse> script_;
  std::size_t cursor_ = 0;            ///< Next use of the script.
  TensorView measured_;               ///< Empty while gradients are kept.
  std::vector<Work> gradients_work_;  ///< By group (stages 0, 1) or slot.
  std::unique_ptr<Queue> copying_;    ///< Gradients home, where they are offloaded:
  std::vector<Event> copied_;         ///< likewise, until the kernels' may be overwritten.
  std::vector<Work> gathers_;         ///< Those of gather_blocks().
  std::vector<std::int32_t>
      folds_;                  ///< By slot: group whose reduced block waits there, −1 for none.
  std::vector<bool> folded_;   ///< By group: owned_gradients_ holds an earlier micro-batch.
  ResultSums tensor_squares_;  ///< Of this rank's own gradient, by entry of the table.
};

}  // namespace jforge
