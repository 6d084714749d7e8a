#pragma once

/// Conversations to token ids: chat template, then tokenizer, in several threads.

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

/// What is asked: one user message, or several messages of which the last is the user's.
using Conversation = std::vector<ChatMessage>;

/// How conversations become prompts.
struct PromptEncoder {
  /// Ids of one conversation. Called from many threads at once.
  std::function<std::vector<TokenId>(const Conversation& messages)> encode;
  /// What the ids depend on besides the messages; part of a store's identity.
  std::string identity;
  /// Whether a text spells control tokens ("<|im_end|>"), which `encode` turns into their ids as
  /// Hugging Face's tokenizers do. May be empty: then nothing is counted. Called as `encode`.
  std::function<bool(std::string_view text)> holds_control_tokens = {};
};

/// Renders the messages with the generation prompt and encodes them. `system` comes before those
/// that do not begin with a system message of their own; without it the template's default stands.
/// Copies of tokenizer and template are kept.
[[nodiscard]] PromptEncoder make_prompt_encoder(const BytePairTokenizer& tokenizer,
                                                const ChatTemplate& chat_template,
                                                const std::optional<std::string>& system);

/// What became of a prompt.
struct EncodedPrompt {
  std::vector<TokenId> tokens;
  /// Why it could not be encoded (a DataError's message); nothing when it was.
  std::optional<std::string> refusal;

  bool operator==(const EncodedPrompt&) const = default;
};

/// Encodes all `prompts` with `threads` threads (at least 1), results in their order. A prompt that
/// the encoder refuses with DataError spoils no other one. The first other exception of a
/// thread is thrown again here.
[[nodiscard]] std::vector<EncodedPrompt> encode_all(const PromptEncoder& encoder,
                                                    std::span<const Conversation* const> prompts,
                                                    int threads);

}  // namespace jforge
