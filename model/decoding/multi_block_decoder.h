#pragma once

#include <cstdint>
#include <memory>

#include "model/decoding/sequence_decoder.h"

namespace jforge {

/// Initial draft of a new pseudo block.
enum class SpawnMode : std::uint8_t {
  continuation,  ///< The prediction after the newest block, then its continuation in the pool.
  clone,         ///< A copy of the real-active draft, as in the paper.
};

struct MultiBlockOptions {
  std::int32_t block_size = 64;        ///< n ≥ 1
  std::int32_t blocks = 2;             ///< K ≥ 1, with the real-active one.
  double spawn_ratio = 0.85;           ///< r in (0, 1]
  std::int32_t verification_size = 4;  ///< ≥ 1: drafts verified per forward.
  std::int32_t ngram_pool = 16;        ///< ≥ 0: rejected sequences kept.
  /// Maximum number of last tokens looked up in the text for a candidate. 0: none, as in the paper.
  std::int32_t match_length = 0;
  SpawnMode spawn = SpawnMode::continuation;
  /// As in the authors' code, candidates carry the pseudo blocks, and the winner refines them.
  bool pseudo_on_every_row = false;
  std::uint64_t seed = 0;
  std::uint64_t round = 0;

  void validate() const;  ///< Throws ConfigError.
};

/// Multi-block decoding with rejection recycling (METHOD.md §6.3; the paper's algorithm 1). The
/// tokens equal greedy decoding's, because only the real-active block makes tokens known. With one
/// block and verification_size 1 it equals the shrinking window, draw for draw.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_multi_block_decoder(
    DecodeRequest request, const MultiBlockOptions& options);

}  // namespace jforge
