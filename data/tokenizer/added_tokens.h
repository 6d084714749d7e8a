#pragma once

/// Finds tokens such as "<|im_end|>" in text before byte pairs are merged.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

struct AddedToken {
  TokenId id = 0;
  std::string content;      ///< UTF-8, not in GPT-2's spelling.
  bool special = false;     ///< Dropped by decode(…, skip_special).
  bool lstrip = false;      ///< Removes the white space before it.
  bool rstrip = false;      ///< Removes the white space after it.
  bool normalized = false;  ///< Matched in normalised instead of raw text.
  bool operator==(const AddedToken&) const = default;
};

/// Matches leftmost, then longest. Immutable.
class AddedTokenMatcher {
 public:
  /// `token` is null for ordinary text.
  using Emit = std::function<void(std::string_view text, const AddedToken* token)>;

  /// Throws DataError if a content is empty.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  /// Emits non-empty parts in order. Requires: `text` is well-formed UTF-8.
  void split(std::string_view text, const Emit& emit) const;
  [[nodiscard]] bool empty() const { return tokens_.empty(); }

 private:
  struct Node {
    std::int32_t token = -1;         // Index into tokens_.
    std::vector<std::int32_t> next;  // 256 children or −1; empty for a leaf.
  };
  /// Returns an index into tokens_, or −1.
  [[nodiscard]] std::int32_t longest_at(std::string_view text, std::size_t offset) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
};

}  // namespace jforge
