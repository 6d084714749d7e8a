#include "checkpoints/tokenizer_fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "runtime/error.h"

namespace jforge {

namespace {
constexpr const char* kRemedy =
    "tokenizer and model do not belong together; use the tokenizer files that came with the model";

/// Returns the special tokens after an answer.
std::vector<TokenId> tokens_behind_answer(const BytePairTokenizer& tokenizer,
                                          const ChatTemplate& chat) {
  const auto messages = std::to_array<ChatMessage>({{"user", "1234567"}, {"assistant", "7654321"}});
  std::string text;
  try {
    text = chat.render_answered(messages);
  } catch (const DataError&) {  // The template may refuse.
    return {};
  }
  const std::size_t answer = text.rfind(messages.back().content);
  if (answer == std::string::npos) {
    return {};
  }
  std::vector<TokenId> tokens =
      tokenizer.encode(std::string_view(text).substr(answer + messages.back().content.size()));
  std::erase_if(tokens, [&](TokenId token) {
    return !tokenizer.decode({&token, 1}, /*skip_special=*/true).empty();
  });
  return tokens;
}

}  // namespace

void expect_tokenizer_fits(const std::filesystem::path& directory,
                           const BytePairTokenizer& tokenizer, const TransformerConfig& model) {
  if (tokenizer.vocabulary_size() > model.vocabulary_size) {
    throw DataError(fmt::format("{}: the tokenizer has ids up to {}, the model only 0 … {}: {}",
                                directory.string(), tokenizer.vocabulary_size() - 1,
                                model.vocabulary_size - 1, kRemedy));
  }
}

void expect_ids_fit(const std::string& owner, std::span<const TokenId> ids,
                    const TransformerConfig& model) {
  const auto outside =
      std::ranges::find_if(ids, [&](TokenId id) { return id < 0 || id >= model.vocabulary_size; });
  if (outside != ids.end()) {
    throw DataError(fmt::format("{} holds token {}, the model has only 0 … {}: {}", owner, *outside,
                                model.vocabulary_size - 1, kRemedy));
  }
}

std::optional<std::string> unstopped_turns(const BytePairTokenizer& tokenizer,
                                           const ChatTemplate& chat,
                                           const TransformerConfig& model) {
  const std::vector<TokenId> behind = tokens_behind_answer(tokenizer, chat);
  if (behind.empty() || std::ranges::find_first_of(behind, model.eos_ids) != behind.end()) {
    return std::nullopt;
  }
  const TokenId end = behind.front();
  std::vector<TokenId> stops = {end};
  stops.insert(stops.end(), model.eos_ids.begin(), model.eos_ids.end());
  return fmt::format(
      "{}: the chat template ends a turn with {} (token {}), which is not among the model's "
      "end-of-sequence tokens ({}), so that answers would run on to the longest length; set "
      "\"eos_token_id\": [{}] in its generation_config.json (pretrain: make it the eos_token of "
      "tokenizer_config.json)",
      chat.origin(), tokenizer.decode({&end, 1}), end, fmt::join(model.eos_ids, ", "),
      fmt::join(stops, ", "));
}

void expect_turns_stop(const BytePairTokenizer& tokenizer, const ChatTemplate& chat,
                       const TransformerConfig& model) {
  if (const auto problem = unstopped_turns(tokenizer, chat, model)) {
    throw DataError(*problem);
  }
}

}  // namespace jforge
