#pragma once

#include <cstdint>
#include <memory>

#include "model/decoding/sequence_decoder.h"

namespace jforge {

struct PromptLookupOptions {
  std::int32_t block_size = 16;   ///< n ≥ 1: maximum tokens of a draft.
  std::int32_t match_length = 3;  ///< ≥ 1: maximum number of last tokens looked up.

  void validate() const;  ///< Throws ConfigError.
};

/// Prompt lookup, a training-free baseline without a seed (METHOD.md §6.3). Drafts the newest token
/// and, if the last tokens occurred before, what followed their newest occurrence.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_prompt_lookup_decoder(
    DecodeRequest request, const PromptLookupOptions& options);

}  // namespace jforge
