#pragma once

#include <cstdint>
#include <memory>

#include "model/decoding/sequence_decoder.h"

namespace jforge {

/// What a new pseudo block of multi-block decoding begins as.
enum class SpawnMode : std::uint8_t {
  continuation,  ///< What was predicted behind the newest block, then its continuation in the pool.
  clone,         ///< A copy of the real-active draft, as in the paper.
};

struct MultiBlockOptions {
  std::int32_t block_size = 64;  ///< n ≥ 1
  std::int32_t blocks = 2;       ///< K ≥ 1, the real-active one included.
  double spawn_ratio = 0.85;     ///< r in (0, 1]
  std::int32_t verification_size =
      4;                         ///< Drafts verified per forward, the plain one included; ≥ 1.
  std::int32_t ngram_pool = 16;  ///< Sequences kept of what was rejected; ≥ 0.
  /// Last tokens, at most, that are looked for in prompt and answer: what followed them there is a
  /// candidate before the pool's. 0: none is, as in the paper.
  std::int32_t match_length = 0;
  SpawnMode spawn = SpawnMode::continuation;
  /// Candidates carry the pseudo blocks, too, and the winner's refine them, as in the authors'
  /// code: more rows a forward, and no draft that was made behind a row that lost.
  bool pseudo_on_every_row = false;
  std::uint64_t seed = 0;
  std::uint64_t round = 0;

  /// Throws ConfigError.
  void validate() const;
};

/// Multi-block decoding with rejection recycling (METHOD.md §6.3; the paper's algorithm 1). Only
/// the real-active block's verification makes tokens known, so that the tokens are greedy's
/// whatever pseudo blocks and candidates hold. With one block and verification_size 1 it is the
/// shrinking window, draw by draw.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_multi_block_decoder(
    DecodeRequest request, const MultiBlockOptions& options);

}  // namespace jforge
