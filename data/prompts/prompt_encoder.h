#pragma once

/// Encodes conversations as token ids: chat template, then tokenizer.

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

/// A user message, or several messages up to the one to answer, which is the user's.
using Conversation = std::vector<ChatMessage>;

struct PromptEncoder {
  /// Returns the token ids of a conversation. Thread-safe.
  std::function<std::vector<TokenId>(const Conversation& messages)> encode;
  /// Identifies tokenizer, template and system text; part of a store's identity.
  std::string identity;
  /// Optional. Returns true if a text spells control tokens ("<|im_end|>"), which `encode` maps to
  /// their ids as Hugging Face's tokenizers do. Thread-safe.
  std::function<bool(std::string_view text)> holds_control_tokens = {};
};

/// Returns an encoder that adds the generation prompt, and `system` to conversations without a
/// system message; otherwise the template's default applies. Copies tokenizer and template.
[[nodiscard]] PromptEncoder make_prompt_encoder(const BytePairTokenizer& tokenizer,
                                                const ChatTemplate& chat_template,
                                                const std::optional<std::string>& system);

struct EncodedPrompt {
  std::vector<TokenId> tokens;
  /// A DataError's message if the prompt could not be encoded.
  std::optional<std::string> refusal;

  bool operator==(const EncodedPrompt&) const = default;
};

/// Encodes `prompts` with `threads` ≥ 1 threads, results in order. A DataError affects only its own
/// prompt; the first other exception of a thread is rethrown.
[[nodiscard]] std::vector<EncodedPrompt> encode_all(const PromptEncoder& encoder,
                                                    std::span<const Conversation* const> prompts,
                                                    int threads);

}  // namespace jforge
