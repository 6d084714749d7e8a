#pragma once

#include <memory>

#include "model/decoding/sequence_decoder.h"

namespace jforge {

/// Decodes one token per forward.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_greedy_decoder(DecodeRequest request);

}  // namespace jforge
