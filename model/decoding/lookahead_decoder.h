#pragma once

#include <cstdint>
#include <memory>

#include "model/decoding/sequence_decoder.h"

namespace jforge {

/// Defaults are the authors' for 7B models, but ngram_pool bounds all n-grams together.
struct LookaheadOptions {
  std::int32_t window = 15;   ///< W ≥ 1: columns of the window.
  std::int32_t ngram = 5;     ///< ≥ 2: tokens of an n-gram; the window has ngram − 1 levels.
  std::int32_t guesses = 15;  ///< ≥ 0: n-grams verified per forward.
  std::int32_t ngram_pool = 1024;  ///< ≥ 0: n-grams kept per request.
  std::uint64_t seed = 0;
  std::uint64_t round = 0;

  void validate() const;  ///< Throws ConfigError.
};

/// Lookahead decoding, a training-free baseline (METHOD.md §6.3; Fu et al. 2024). Level l of column
/// j stands j + l positions after the newest token and sees the first level up to column j and its
/// own column. The first level is a draft of the sequence; each column is an alternative that forks
/// there, so the mask is exact.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_lookahead_decoder(
    DecodeRequest request, const LookaheadOptions& options);

}  // namespace jforge
