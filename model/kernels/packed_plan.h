#pragma once

/// Index data of packed batches on the set's device, checked and copied once, not per layer.

#include <cstdint>
#include <span>

#include "model/transformer/packed_layout.h"
#include "runtime/ids.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Tokens and positions, int32 [T] each on the set's device.
struct PlannedRows {
  ConstTensorView tokens;
  ConstTensorView positions;
  std::int64_t token_limit = 0;     ///< 1 + the largest token.
  std::int64_t position_limit = 0;  ///< 1 + the largest position.
};

/// Either span may be empty. Throws InternalError for a negative token or position.
[[nodiscard]] PlannedRows rows_on_host(std::span<const TokenId> tokens,
                                       std::span<const std::int32_t> positions);

/// key_heads divides heads.
struct AttentionHeads {
  std::int64_t heads = 0;      ///< H
  std::int64_t key_heads = 0;  ///< Hkv
  std::int64_t size = 0;       ///< D
  [[nodiscard]] std::int64_t group() const { return heads / key_heads; }
  bool operator==(const AttentionHeads&) const = default;
};

/// One packed batch at a time, for functions of the set that made the plan. Reuses its memory.
class PackedPlan {
 public:
  /// Throws InternalError if key heads do not divide query heads.
  explicit PackedPlan(const AttentionHeads& heads);
  virtual ~PackedPlan() = default;
  PackedPlan(const PackedPlan&) = delete;
  PackedPlan& operator=(const PackedPlan&) = delete;

  /// Requires: `batch` outlives the plan's use. Throws InternalError unless tokens, positions and
  /// layout agree, the segments cover the rows and are valid (AttentionSegment), and loss items lie
  /// in them.
  void assign(const PackedBatch& batch);

  [[nodiscard]] const AttentionHeads& heads() const noexcept { return heads_; }
  [[nodiscard]] const PackedBatch& batch() const noexcept { return *batch_; }
  [[nodiscard]] const PlannedRows& rows() const noexcept { return rows_; }
  [[nodiscard]] std::int64_t num_rows() const noexcept { return batch_->layout.num_rows; }
  /// 1 + the largest target.
  [[nodiscard]] std::int64_t target_limit() const noexcept { return target_limit_; }

 private:
  /// Copies the index data to the device and sets `rows` to views of them.
  virtual void place(const PackedBatch& batch, PlannedRows& rows) = 0;

  AttentionHeads heads_;
  const PackedBatch* batch_ = nullptr;
  PlannedRows rows_;
  std::int64_t target_limit_ = 0;
};

}  // namespace jforge
