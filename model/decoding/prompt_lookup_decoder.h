#pragma once

#include <cstdint>
#include <memory>

#include "model/decoding/sequence_decoder.h"

namespace jforge {

struct PromptLookupOptions {
  std::int32_t block_size = 16;   ///< n ≥ 1: tokens of a draft at most.
  std::int32_t match_length = 3;  ///< Last tokens that are looked for, at most; ≥ 1.

  /// Throws ConfigError.
  void validate() const;
};

/// Prompt lookup, a baseline that needs no training and no seed (METHOD.md §6.3): the draft is the
/// newest token and what followed the last tokens where they stood before, in prompt or answer,
/// which repeats where it reaches the newest; only the newest token where they never did.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_prompt_lookup_decoder(
    DecodeRequest request, const PromptLookupOptions& options);

}  // namespace jforge
