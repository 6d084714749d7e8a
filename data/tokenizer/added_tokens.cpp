#include "data/tokenizer/added_tokens.h"

#include <fmt/core.h>

#include <algorithm>

#include "data/tokenizer/unicode.h"
#include "runtime/error.h"

namespace jforge {

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), nodes_(1) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i].content.empty()) {
      throw DataError(fmt::format(
          "added token {} has no text: remove it from the tokenizer's files", tokens_[i].id));
    }
    std::size_t node = 0;
    for (const char c : tokens_[i].content) {
      const auto byte = static_cast<unsigned char>(c);
      if (nodes_[node].next.empty()) nodes_[node].next.assign(256, -1);
      if (nodes_[node].next[byte] < 0) {
        nodes_[node].next[byte] = static_cast<std::int32_t>(nodes_.size());
        nodes_.emplace_back();
      }
      node = static_cast<std::size_t>(nodes_[node].next[byte]);
    }
    nodes_[node].token = static_cast<std::int32_t>(i);
  }
}

std::int32_t AddedTokenMatcher::longest_at(std::string_view text, std::size_t offset) const {
  std::int32_t longest = -1;
  std::size_t node = 0;
  for (; offset < text.size() && !nodes_[node].next.empty(); ++offset) {
    const std::int32_t child = nodes_[node].next[static_cast<unsigned char>(text[offset])];
    if (child < 0) break;
    node = static_cast<std::size_t>(child);
    if (nodes_[node].token >= 0) longest = nodes_[node].token;
  }
  return longest;
}

void AddedTokenMatcher::split(std::string_view text, const Emit& emit) const {
  std::size_t emitted = 0;
  for (std::size_t at = 0; at < text.size() && !tokens_.empty();) {
    const std::int32_t index = longest_at(text, at);
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
    std::size_t begin = at;
    std::size_t end = at + token.content.size();
    if (token.lstrip) {
      begin = emitted + trailing_white_space(text.substr(emitted, at - emitted));
    }
    if (token.rstrip) end += leading_white_space(text.substr(end));
    if (begin > emitted) emit(text.substr(emitted, begin - emitted), nullptr);
    emit(text.substr(begin, end - begin), &token);
    emitted = at = end;
  }
  if (emitted < text.size()) emit(text.substr(emitted), nullptr);
}

}  // namespace jforge
