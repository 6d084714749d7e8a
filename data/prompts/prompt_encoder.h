#pragma once

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

/// One or several messages, the last of which is the user's.
using Conversation = std::vector<ChatMessage>;

struct PromptEncoder {
  /// Thread-safe.
  std::function<std::vector<TokenId>(const Conversation& messages)> encode;
  std::string identity;  ///< Identifies tokenizer, template and system text.
  /// Optional, thread-safe. Returns true if a text spells control tokens ("<|im_end|>"), which
  /// `encode` maps to their ids as Hugging Face's tokenizers do.
  std::function<bool(std::string_view text)> holds_control_tokens = {};
};

/// Adds the generation prompt, and `system` to conversations without a system message (default: the
/// template's). Copies tokenizer and template.
[[nodiscard]] PromptEncoder make_prompt_encoder(const BytePairTokenizer& tokenizer,
                                                const ChatTemplate& chat_template,
                                                const std::optional<std::string>& system);

struct EncodedPrompt {
  std::vector<TokenId> tokens;
  std::optional<std::string> refusal;  ///< Message of the DataError, if encoding failed.

  bool operator==(const EncodedPrompt&) const = default;
};

/// Encodes in order with `threads` ≥ 1 threads. A DataError affects only its prompt; the first
/// other exception is rethrown.
[[nodiscard]] std::vector<EncodedPrompt> encode_all(const PromptEncoder& encoder,
                                                    std::span<const Conversation* const> prompts,
                                                    int threads);

}  // namespace jforge
