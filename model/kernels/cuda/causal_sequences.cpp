#include "model/kernels/cuda/causal_sequences.h"

#include <algorithm>
#include <bit>

namespace jforge {

namespace {

std::int64_t power_of_two_from(std::int64_t value) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(value)));
}

}  // namespace

void CausalSequences::place(const PackedLayout& layout, const AttentionHeads& heads) {
  lengths_.clear();
  for (std::vector<std::int64_t>* begins : {&begins_.queries, &begins_.keys, &begins_.terms}) {
    begins->clear();
  }
  const auto begin_at = [&](std::int64_t row) {
    begins_.queries.push_back(row * heads.heads * heads.size);
    begins_.keys.push_back(row * heads.key_heads * heads.size);
    begins_.terms.push_back(row * heads.heads);
  };
  std::int64_t longest = kLeastRows;
  for (const AttentionSegment& segment : layout.segments) {
    if (segment.is_sequence()) {
      const std::int64_t rows = segment.row_end - segment.row_begin;
      longest = std::max(longest, rows);
      lengths_.push_back(static_cast<std::int32_t>(rows));
      begin_at(segment.row_begin);
    }
  }
  count_ = std::ssize(lengths_);
  places_ = count_ == 0 ? 0 : power_of_two_from(count_);
  most_rows_ = power_of_two_from(longest);
  lengths_.resize(static_cast<std::size_t>(places_), 0);
  for (std::int64_t place = count_; place <= places_; ++place) {
    begin_at(layout.num_rows);
  }
}

}  // namespace jforge
