#pragma once

/// Qwen2 forward and backward over a packed batch: the training arithmetic, written once against
/// KernelSet.

#include <functional>
#include <memory>
#include <span>

#include "model/kernels/kernel_set.h"
#include "model/transformer/packed_layout.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/transformer_config.h"

namespace jforge {

/// Holds the activations of one packed batch; memory grows to the largest batch seen and is reused
/// (no allocation per step once warm). One object per rank and phase; not thread-safe.
///
/// Parameters and gradients may lie in host memory while the kernels compute on a device: forward()
/// then copies the parameters over, and every finished group of gradients comes back and is added.
/// Beside the activations that takes 8 bytes a parameter on the device.
class TrainingTransformer {
 public:
  struct Options {
    bool activation_checkpointing =
        false;  ///< Keep only layer inputs; recompute the rest in backward.
  };
  TrainingTransformer(const TransformerConfig& config, const ParameterTable& table,
                      KernelSet& kernels, MemoryAccount& account, Options options);
  ~TrainingTransformer();

  /// Called in forward() after each layer: a sign of progress.
  using LayerDone = std::function<void()>;

  /// Forward over `batch`; parameters is the flat float32 vector of the table. Returns hidden
  /// states after the final norm, [T, C], valid until the next call.
  ConstTensorView forward(const PackedBatch& batch, ConstTensorView parameters,
                          const LayerDone& layer_done = {});

  /// Called with the group index as soon as all gradients of a parameter group are final for this
  /// micro-batch (head first, embedding last): the hook for overlapping reduction.
  using GroupReady = std::function<void(std::int32_t group)>;

  /// Loss and backward of the batch and the parameters given to the last forward(). Adds parameter
  /// gradients to `gradients` (flat float32, as the table). Loss = consistency_weight · L_pc +
  /// ar_weight · L_AR; returns the two sums before those weights.
  VocabularyLossSums loss_and_backward(const PackedBatch& batch, ConstTensorView parameters,
                                       float consistency_weight, float ar_weight,
                                       TensorView gradients, const GroupReady& group_ready = {});

  /// Bytes of activations that a batch of `rows` rows takes: what forward() allocates. The
  /// vocabulary loss and the attention kernels take some tens of MiB of their own on top.
  static std::size_t bytes(const TransformerConfig& config, std::int64_t rows, Options options);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Multiply-adds × 2 of one forward+backward over `batch` (attention counted by visible keys): the
/// numerator of MFU.
[[nodiscard]] double training_flops(const TransformerConfig& config, const PackedBatch& batch);

}  // namespace jforge
