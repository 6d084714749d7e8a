#pragma once

/// Prompt text to token ids: chat template, then tokenizer, in several threads.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "runtime/ids.h"

namespace jforge {

/// How texts become prompts.
struct PromptEncoder {
  /// Ids of one text. Called from many threads at once.
  std::function<std::vector<TokenId>(std::string_view text)> encode;
  /// What the ids depend on besides the text; part of a store's identity.
  std::string identity;
  /// Whether a text spells control tokens ("<|im_end|>"), which `encode` turns into their ids as
  /// Hugging Face's tokenizers do. May be empty: then nothing is counted. Called as `encode`.
  std::function<bool(std::string_view text)> holds_control_tokens = {};
};

/// Renders {system?, user: text} with the generation prompt and encodes it. Without `system` the
/// template's own default stands. Copies of tokenizer and template are kept.
[[nodiscard]] PromptEncoder make_prompt_encoder(const BytePairTokenizer& tokenizer,
                                                const ChatTemplate& chat_template,
                                                const std::optional<std::string>& system);

/// Encodes all `texts` with `threads` threads (at least 1), results in the order of the texts. The
/// first exception of a thread is thrown again here.
[[nodiscard]] std::vector<std::vector<TokenId>> encode_all(const PromptEncoder& encoder,
                                                           std::span<const std::string_view> texts,
                                                           int threads);

}  // namespace jforge
