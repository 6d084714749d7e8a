#pragma once

#include <cstdint>
#include <memory>

#include "model/decoding/sequence_decoder.h"

namespace jforge {

/// The defaults are the authors' for models of 7 billion parameters, who bound the n-grams of each
/// first token instead of all.
struct LookaheadOptions {
  std::int32_t window = 15;        ///< W ≥ 1: columns of the window that n-grams are made in.
  std::int32_t ngram = 5;          ///< N ≥ 2: tokens of an n-gram; N − 1 levels of the window.
  std::int32_t guesses = 15;       ///< G ≥ 0: n-grams verified in one forward.
  std::int32_t ngram_pool = 1024;  ///< n-grams kept of a request: more than recent text needs; ≥ 0.
  std::uint64_t seed = 0;
  std::uint64_t round = 0;

  /// Throws ConfigError.
  void validate() const;
};

/// Lookahead decoding, a baseline that needs no training (METHOD.md §6.3; Fu et al. 2024). Beside
/// the newest token a forward holds a window of N − 1 levels and W columns, the last N − 1 states
/// of a Jacobi iteration, each of which continues the one before it: what level l holds in column j
/// stands at offset j + l behind the newest token and sees the first level up to column j and its
/// own column. The predictions behind the columns complete W n-grams, which are kept by their first
/// token; those that begin with the newest one are verified. The window's mask is exact: its first
/// level is a draft of the sequence, and each column an alternative that forks off there.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_lookahead_decoder(
    DecodeRequest request, const LookaheadOptions& options);

}  // namespace jforge
