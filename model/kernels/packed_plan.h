#pragma once

/// The index data of rows and of packed batches where kernels can read them: checked and brought
/// there once, not at every layer.

#include <cstdint>
#include <span>

#include "model/transformer/packed_layout.h"
#include "runtime/ids.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Tokens and positions of rows, int32 [T] each on a kernel set's device.
struct PlannedRows {
  ConstTensorView tokens;
  ConstTensorView positions;
  std::int64_t token_limit = 0;     ///< 1 + the largest token: rows a table must have.
  std::int64_t position_limit = 0;  ///< 1 + the largest position.
};

/// Rows in host memory. Either span may be empty. Throws InternalError for a negative token or
/// position.
[[nodiscard]] PlannedRows rows_on_host(std::span<const TokenId> tokens,
                                       std::span<const std::int32_t> positions);

/// What an attention's blocks of work depend on beside the layout. key_heads divides heads.
struct AttentionHeads {
  std::int64_t heads = 0;      ///< H
  std::int64_t key_heads = 0;  ///< Hkv
  std::int64_t size = 0;       ///< D
  [[nodiscard]] std::int64_t group() const { return heads / key_heads; }
  bool operator==(const AttentionHeads&) const = default;
};

/// Of one packed batch at a time. Made by a kernel set (KernelSet::make_plan) for its own
/// functions; memory grows to the largest batch and is reused.
class PackedPlan {
 public:
  /// Throws InternalError when the numbers of heads do not fit.
  explicit PackedPlan(const AttentionHeads& heads);
  virtual ~PackedPlan() = default;
  PackedPlan(const PackedPlan&) = delete;
  PackedPlan& operator=(const PackedPlan&) = delete;

  /// Plans `batch`, which must stay as it is while the plan is used. Throws InternalError unless
  /// tokens, positions and layout have the same rows, the segments cover them in order and see only
  /// what AttentionSegment allows, and the loss items lie in them.
  void assign(const PackedBatch& batch);

  [[nodiscard]] const AttentionHeads& heads() const noexcept { return heads_; }
  [[nodiscard]] const PackedBatch& batch() const noexcept { return *batch_; }
  [[nodiscard]] const PlannedRows& rows() const noexcept { return rows_; }
  [[nodiscard]] std::int64_t num_rows() const noexcept { return batch_->layout.num_rows; }
  /// 1 + the largest target of a loss item: rows that a head must have.
  [[nodiscard]] std::int64_t target_limit() const noexcept { return target_limit_; }

 private:
  /// Brings the batch's index data to the device and makes `rows` views of them there.
  virtual void place(const PackedBatch& batch, PlannedRows& rows) = 0;

  AttentionHeads heads_;
  const PackedBatch* batch_ = nullptr;
  PlannedRows rows_;
  std::int64_t target_limit_ = 0;
};

}  // namespace jforge
