#pragma once

/// Tokens that are found in the text itself, before byte pairs are merged ("<|im_end|>").

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// One added token, with the flags of `added_tokens` / `added_tokens_decoder`.
struct AddedToken {
  TokenId id = 0;
  std::string content;      ///< UTF-8 text, not spelled in GPT-2's characters.
  bool special = false;     ///< Dropped by decode(…, skip_special).
  bool lstrip = false;      ///< Swallows the white space before it.
  bool rstrip = false;      ///< Swallows the white space after it.
  bool normalized = false;  ///< Looked for in the normalised text instead of the raw text.
  bool operator==(const AddedToken&) const = default;
};

/// Finds added tokens in text: leftmost, and of those the longest. Immutable after construction.
class AddedTokenMatcher {
 public:
  /// A stretch of text: an added token, or ordinary text when `token` is null.
  using Emit = std::function<void(std::string_view text, const AddedToken* token)>;

  /// `tokens[i]` is looked for by its content; empty contents are a DataError.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  /// Emits the stretches of well-formed UTF-8 `text` in order; empty ones are left out.
  void split(std::string_view text, const Emit& emit) const;
  [[nodiscard]] bool empty() const { return tokens_.empty(); }

 private:
  struct Node {
    std::int32_t token = -1;         // index into tokens_ of the token that ends here
    std::vector<std::int32_t> next;  // 256 children, -1 where there is none; empty for a leaf
  };
  /// Index into tokens_ of the longest token that starts at `offset`, -1 if none does.
  [[nodiscard]] std::int32_t longest_at(std::string_view text, std::size_t offset) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
};

}  // namespace jforge
