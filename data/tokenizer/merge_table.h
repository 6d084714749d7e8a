#pragma once

/// The merge rules of a byte-pair encoding and their application to one piece of text.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// Pairs of token ids with their rank (0 is merged first) and the id they merge into.
/// After construction it is immutable and may be used from many threads.
class MergeTable {
 public:
  /// One merge rule; its rank is its place in the list.
  struct Rule {
    TokenId left;
    TokenId right;
    TokenId merged;
  };

  /// `byte_ids[b]` is the token of the single byte b, -1 if there is none: such a byte is left out,
  /// and its neighbours are adjacent. `rules` in order of rank; a pair that occurs twice is a
  /// DataError naming both ranks.
  MergeTable(const std::array<TokenId, 256>& byte_ids, const std::vector<Rule>& rules);

  /// Appends the tokens of `piece` to `out`: starting from single bytes, the adjacent pair of
  /// lowest rank, leftmost first, is merged until no rule applies. O(n log n) in the piece's bytes;
  /// pieces of 4 GiB or more are a DataError.
  void encode_piece(std::string_view piece, std::vector<TokenId>& out) const;

 private:
  static constexpr std::uint32_t kNoRule = 0xFFFFFFFFU;
  struct Slot {
    std::uint64_t key;
    std::uint32_t rank;  // kNoRule marks an empty slot
  };

  [[nodiscard]] std::uint32_t rank_of(TokenId left, TokenId right) const;
  [[nodiscard]] TokenId byte_token(char byte) const {
    return byte_ids_[static_cast<unsigned char>(byte)];
  }
  void encode_short(std::string_view piece, std::vector<TokenId>& out) const;
  void encode_long(std::string_view piece, std::vector<TokenId>& out) const;

  std::array<TokenId, 256> byte_ids_;
  std::vector<TokenId> merged_;  // by rank
  std::vector<Slot> slots_;      // open addressing, a power of two, at most half full
  std::uint64_t mask_ = 0;
};

}  // namespace jforge
