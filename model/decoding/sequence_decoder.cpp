#include "model/decoding/sequence_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "runtime/error.h"

namespace jforge {

void DecodeRequest::validate() const {
  if (prompt.empty()) {
    throw DataError(fmt::format("decoding: prompt {} has no tokens; give it at least one", id));
  }
  if (std::ranges::any_of(prompt, [](TokenId token) { return token < 0; })) {
    throw DataError(fmt::format("decoding: prompt {} holds a negative token id", id));
  }
  if (max_new_tokens < 1 || max_new_tokens > std::numeric_limits<std::int32_t>::max()) {
    throw ConfigError(fmt::format(
        "decoding: max_new_tokens is {} for prompt {}; it must be at least 1 and below 2^31",
        max_new_tokens, id));
  }
  sampling.validate();
}

bool DecodeRequest::is_eos(TokenId token) const noexcept {
  return std::ranges::find(eos_ids, token) != eos_ids.end();
}

DecodingCost& DecodingCost::operator+=(const DecodingCost& other) noexcept {
  sequences += other.sequences;
  tokens += other.tokens;
  forwards += other.forwards;
  return *this;
}

std::optional<double> DecodingCost::tokens_per_forward() const {
  if (forwards == 0) {
    return std::nullopt;
  }
  return static_cast<double>(tokens - sequences) / static_cast<double>(forwards);
}

std::optional<double> DecodingCost::tokens_per_forward_with_prefill() const {
  if (sequences == 0) {
    return std::nullopt;
  }
  return static_cast<double>(tokens) / static_cast<double>(forwards + sequences);
}

}  // namespace jforge
