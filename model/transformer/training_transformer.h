#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "model/transformer/layer_plan.h"
#include "model/transformer/packed_layout.h"
#include "model/transformer/parameter_source.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/transformer_config.h"

namespace jforge {

/// A separate teacher: what its forward() of take_teacher_rows() returned, and the lender of its
/// head. Empty: the student's clean rows teach.
struct TeacherForward {
  ConstTensorView hidden;
  ParameterSource* parameters = nullptr;
};

/// The frozen model beside a head, after its forward() of take_clean_rows()'s batch.
struct FrozenForward {
  const ParameterTable& table;
  ParameterSource& parameters;           ///< Lends embedding and head.
  ConstTensorView hidden;                ///< What forward() returned.
  std::span<const TensorView> features;  ///< TrainingTransformer::features()
};

/// Forward and backward over packed batches. Memory grows to the largest batch and is reused. One
/// object per rank and phase; not thread-safe. Borrows groups in the order of PassUses and calls
/// note_progress() after each layer.
class TrainingTransformer {
 public:
  struct Options {
    bool activation_checkpointing = false;  ///< Keep layers' inputs only; recompute the rest.
    /// Type of weights on loan, activations and their gradients: float32 or bfloat16. The residual
    /// stream, its gradient and parameters' gradients are always float32: in bfloat16 the stream
    /// nearly doubles a gradient's error at 24 layers.
    DType compute = DType::float32;
    bool forward_only = false;  ///< Keep nothing for loss_and_backward(), which must not be called.
    /// The model is frozen; noisy rows have the adapter's additions, and only its weights, in the
    /// table of this shape with the model's shard count, get gradients. Noisy rows must see clean
    /// rows and their own block only (MaskKind::clean).
    std::optional<AdapterShape> adapter = {};
    /// This is a head: configuration and table are head_config()'s and the head's, and only
    /// forward_head() and loss_and_backward_head() may be called.
    std::optional<HeadShape> head = {};
    std::vector<std::int32_t> features = {};  ///< HeadShape::features, of the model beside a head.
  };
  TrainingTransformer(const TransformerConfig& config, const ParameterTable& table,
                      KernelSet& kernels, MemoryAccount& account, const Options& options);
  ~TrainingTransformer();
  TrainingTransformer(const TrainingTransformer&) = delete;
  TrainingTransformer& operator=(const TrainingTransformer&) = delete;

  /// Returns the hidden states after the final norm, [T, C] of the compute type, valid until the
  /// next call. `batch` must not change before its last loss_and_backward().
  /// `adapter`: lender of the adapter's weights, if there is one.
  ConstTensorView forward(const PackedBatch& batch, ParameterSource& parameters,
                          ParameterSource* adapter = nullptr);

  /// Backward of the last forward(), of consistency_scale · L_pc + ar_scale · L_AR; may be called
  /// several times. A separate teacher is given by `teacher`, not in the terms, and gets no
  /// gradient. Groups become ready from the head to the embedding.
  void loss_and_backward(ParameterSource& parameters, const LossTerms& terms,
                         GradientSink& gradients, const TeacherForward& teacher = {});
  /// The same with an adapter, whose gradients become ready from the last layer to the first.
  /// Requires: no AR targets.
  void loss_and_backward(ParameterSource& parameters, ParameterSource& adapter,
                         const LossTerms& terms, GradientSink& gradients);

  /// Returns the residual stream after each layer of Options::features, [T, C] of the compute type,
  /// as forward() left it.
  [[nodiscard]] std::span<const TensorView> features() const;

  /// Requires: a head, and a `batch` packed with noisy_last and its mask token. Returns as
  /// forward(); clean rows are zero.
  ConstTensorView forward_head(const PackedBatch& batch, const FrozenForward& model,
                               ParameterSource& head);
  /// Backward of the last forward_head(), of consistency_scale · L_pc; may be called once. Groups
  /// become ready from the head to the features.
  void loss_and_backward_head(const FrozenForward& model, ParameterSource& head,
                              const LossTerms& terms, GradientSink& gradients);

  /// With an adapter, after forward(): sets `next` to the most probable token after each noisy row.
  /// Waits for the device.
  void propose(ParameterSource& parameters, std::vector<TokenId>& next);

  /// Returns what forward() allocates for a batch of `rows` rows. On top, the vocabulary loss takes
  /// about 128 MiB (on a device device_loss_bytes()) and attention kernels some tens of MiB.
  static std::size_t bytes(const TransformerConfig& config, std::int64_t rows,
                           const Options& options);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the FLOPs of forward and backward, attention counted by visible keys, including the
/// logits of a separate teacher: the numerator of MFU. `frozen`: of the training of an adapter,
/// whose own products are not counted.
[[nodiscard]] double training_flops(const LayerPlan& plan, std::int64_t vocabulary,
                                    const PackedBatch& batch, bool frozen = false);
/// Returns the FLOPs of a forward up to the final norm, of all rows or the noisy ones.
[[nodiscard]] double forward_flops(const LayerPlan& plan, const PackedBatch& batch,
                                   bool noisy_only = false);

}  // namespace jforge
