#include "model/kernels/draft_passes.h"

#include <algorithm>

namespace jforge {

namespace {

DraftRows lookahead_rows(const DraftSequence& sequence) {
  const LookaheadWindow& window = sequence.window;
  const std::int64_t columns = std::ssize(window.columns);
  // The pass that adds the second level, from which on columns are alternatives, costs a column.
  const bool alone = columns > 0 && window.columns.front().size() == 1;
  const std::int64_t apart = window.ngram == 2 ? 0 : columns - (alone ? 1 : 0);
  // None of them reaches beyond T.
  const std::int64_t length = std::clamp<std::int64_t>(sequence.max_new_tokens - 2, 0,
                                                       window.ngram - (window.guesses > 0 ? 1 : 2));
  return {.own = std::max<std::int64_t>(1, columns),
          .alternatives = apart + window.guesses,
          .alternative_rows = length};
}

}  // namespace

DraftRows draft_rows(std::span<const DraftSequence> sequences) {
  DraftRows rows;
  for (const DraftSequence& sequence : sequences) {
    if (sequence.method == DraftMethod::lookahead) {
      const DraftRows each = lookahead_rows(sequence);
      rows.own = std::max(rows.own, each.own);
      rows.alternatives = std::max(rows.alternatives, each.alternatives);
      rows.alternative_rows = std::max(rows.alternative_rows, each.alternative_rows);
      continue;
    }
    const DraftBlocks& blocks = sequence.blocks;
    std::int64_t own = sequence.block_size;
    if (sequence.method == DraftMethod::multi_block) {
      // No row is forwarded whose prediction would be behind T.
      own = std::max<std::int64_t>(1, std::min(own * blocks.blocks, sequence.max_new_tokens - 1));
      const std::int64_t alternative = std::min<std::int64_t>(
          sequence.block_size * std::int64_t{blocks.on_every_row ? blocks.blocks : 1},
          sequence.max_new_tokens);
      rows.alternative_rows = std::max(rows.alternative_rows, alternative - 1);
      rows.alternatives = std::max<std::int64_t>(rows.alternatives, blocks.candidates);
    }
    rows.own = std::max(rows.own, own);
  }
  if (rows.alternatives == 0 || rows.alternative_rows == 0) {
    rows.alternatives = rows.alternative_rows = 0;  // One that shares the first token has no rows.
  }
  return rows;
}

}  // namespace jforge
