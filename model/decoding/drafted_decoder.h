#pragma once

#include <cstdint>
#include <memory>

#include "model/decoding/sequence_decoder.h"

namespace jforge {

struct DraftedOptions {
  std::int32_t block_size = 16;   ///< n ≥ 1
  std::int32_t match_length = 0;  ///< Of the looked-up alternative (prompt lookup); 0: none.
  /// Rows of a tree of a head's likeliest proposals, up to block_size deep; 0: its first ones
  /// alone.
  std::int32_t tree_rows = 0;
  double min_probability = 0;  ///< The tree leaves out paths that are less likely.
  std::uint64_t seed = 0;      ///< Of the first draft and of its end, where nothing proposes.

  /// Throws ConfigError for a block_size below 1, a min_probability outside [0, 1] or another value
  /// below 0.
  void validate() const;
};

/// The model verifies what its drafter proposes (METHOD.md §6.7). Beside an adapter each pass has a
/// draft's rows twice: the model's decide, the adapter's (DraftBranch::drafts) propose what follows
/// the accepted tokens. The tokens are those of greedy decoding whatever the drafter says; so are
/// samples.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_drafted_decoder(DecodeRequest request,
                                                                    const DraftedOptions& options);

}  // namespace jforge
