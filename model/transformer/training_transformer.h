#pragma once

/// Forward and backward over a packed batch: the training arithmetic, written once against
/// KernelSet.

#include <memory>
#include <span>

#include "model/kernels/kernel_set.h"
#include "model/transformer/packed_layout.h"
#include "model/transformer/parameter_source.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/transformer_config.h"

namespace jforge {

/// A model of its own that teaches: what its forward() of take_teacher_rows() returned, and what
/// lends its head. Empty: the student's clean rows teach.
struct TeacherForward {
  ConstTensorView hidden;
  ParameterSource* parameters = nullptr;
};

/// Holds the activations of one packed batch; memory grows to the largest batch seen and is reused
/// (no allocation per step once warm). One object per rank and phase; not thread-safe.
///
/// Parameters and gradients are on loan, one group at a time, in the order of PassUses; every layer
/// done is a sign of progress (note_progress).
class TrainingTransformer {
 public:
  struct Options {
    bool activation_checkpointing =
        false;  ///< Keep only layer inputs; recompute the rest in backward.
    /// Of weights on loan, activations and their gradients: float32 or bfloat16. With bfloat16 the
    /// residual stream, its gradient and the gradients of parameters stay float32: the stream adds
    /// up 2 L branches, and in bfloat16 it nearly doubles a gradient's error at 24 layers.
    DType compute = DType::float32;
    bool forward_only = false;  ///< Keeps nothing for loss_and_backward(), which is not called.
  };
  TrainingTransformer(const TransformerConfig& config, const ParameterTable& table,
                      KernelSet& kernels, MemoryAccount& account, Options options);
  ~TrainingTransformer();
  TrainingTransformer(const TrainingTransformer&) = delete;
  TrainingTransformer& operator=(const TrainingTransformer&) = delete;

  /// Forward over `batch`, which must stay as it is until its last loss_and_backward(); what is
  /// lent must be of the compute type. Returns hidden states after the final norm, [T, C] of the
  /// compute type, valid until the next call.
  ConstTensorView forward(const PackedBatch& batch, ParameterSource& parameters);

  /// Loss and backward of the batch and the parameters given to the last forward(), also several
  /// times after one. Loss = consistency_scale · L_pc + ar_scale · L_AR. A separate teacher gets no
  /// gradient; it is given by `teacher`, not by the terms. Gradients are added to what the sink
  /// opens; groups become ready from the head to the embedding.
  void loss_and_backward(ParameterSource& parameters, const LossTerms& terms,
                         GradientSink& gradients, const TeacherForward& teacher = {});

  /// Bytes of activations that a batch of `rows` rows takes: what forward() allocates. The
  /// vocabulary loss takes about 128 MiB of its own on top, on a device what device_loss_bytes()
  /// says; the attention kernels some tens.
  static std::size_t bytes(const TransformerConfig& config, std::int64_t rows, Options options);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Multiply-adds × 2 of one forward+backward over `batch` (attention counted by visible keys), with
/// the logits of a separate teacher where its items have any: the numerator of MFU.
[[nodiscard]] double training_flops(const TransformerConfig& config, const PackedBatch& batch);
/// The same of a forward up to the final norm.
[[nodiscard]] double forward_flops(const TransformerConfig& config, const PackedBatch& batch);

}  // namespace jforge
