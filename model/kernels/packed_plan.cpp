#include "model/kernels/packed_plan.h"

#include <algorithm>

#include "runtime/error.h"

namespace jforge {

namespace {

std::int64_t limit_of(std::span<const std::int32_t> values, const char* when_negative) {
  std::int64_t limit = 0;
  for (const std::int32_t value : values) {
    expect(value >= 0, when_negative);
    limit = std::max(limit, std::int64_t{value} + 1);
  }
  return limit;
}

ConstTensorView view_of(std::span<const std::int32_t> values) {
  return {values.data(), Shape{static_cast<std::int64_t>(values.size())}};
}

void check_layout(const PackedLayout& layout) {
  std::int64_t next = 0;
  for (const AttentionSegment& segment : layout.segments) {
    expect(segment.row_begin == next && segment.row_begin < segment.row_end &&
               segment.row_end <= layout.num_rows,
           "attention: segments must cover the rows in ascending order");
    expect(0 <= segment.prefix_begin && segment.prefix_begin <= segment.prefix_end &&
               segment.prefix_end <= segment.causal_begin &&
               segment.causal_begin <= segment.row_begin,
           "attention: a segment's prefix must lie before its causal run, and that must begin at "
           "or before its rows");
    next = segment.row_end;
  }
  expect(next == layout.num_rows, "attention: segments must cover all rows");
}

}  // namespace

PlannedRows rows_on_host(std::span<const TokenId> tokens, std::span<const std::int32_t> positions) {
  return {.tokens = view_of(tokens),
          .positions = view_of(positions),
          .token_limit = limit_of(tokens, "negative token"),
          .position_limit = limit_of(positions, "negative position")};
}

PackedPlan::PackedPlan(const AttentionHeads& heads) : heads_(heads) {
  expect(heads.key_heads > 0 && heads.heads % heads.key_heads == 0,
         "attention: query heads must be a multiple of key heads");
}

void PackedPlan::assign(const PackedBatch& batch) {
  const PackedLayout& layout = batch.layout;
  expect(static_cast<std::int64_t>(batch.tokens.size()) == layout.num_rows &&
             batch.positions.size() == batch.tokens.size(),
         "a packed batch's tokens, positions and layout differ in length");
  check_layout(layout);
  target_limit_ = 0;
  for (const LossItem& item : batch.loss_items) {
    expect(item.clean_row >= 0 && item.clean_row < layout.num_rows &&
               item.student_row < layout.num_rows,
           "loss item: row out of range");
    target_limit_ = std::max(target_limit_, std::int64_t{item.target} + 1);
  }
  batch_ = &batch;
  rows_ = rows_on_host(batch.tokens, batch.positions);
  place(batch, rows_);
}

}  // namespace jforge
