#include "model/kernels/cuda/causal_sequences.h"

#include <algorithm>
#include <bit>

namespace jforge {

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
  most_rows_ = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(longest)));
  begin_at(layout.num_rows);
}

}  // namespace jforge
