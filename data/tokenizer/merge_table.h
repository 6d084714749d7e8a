#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// Immutable and thread-safe.
class MergeTable {
 public:
  /// Ranked by index; 0 merges first.
  struct Rule {
    TokenId left;
    TokenId right;
    TokenId merged;
  };

  /// `byte_ids[b]` is −1 for bytes to drop before merging. Throws DataError if a pair occurs twice.
  MergeTable(const std::array<TokenId, 256>& byte_ids, const std::vector<Rule>& rules);

  /// Appends the tokens of `piece`: starting from single bytes, merges the adjacent pair of lowest
  /// rank, leftmost first. O(n log n). Throws DataError from 4 GiB on.
  void encode_piece(std::string_view piece, std::vector<TokenId>& out) const;

 private:
  static constexpr std::uint32_t kNoRule = 0xFFFFFFFFU;
  struct Slot {
    std::uint64_t key;
    std::uint32_t rank;  // kNoRule: empty slot.
  };

  [[nodiscard]] std::uint32_t rank_of(TokenId left, TokenId right) const;
  [[nodiscard]] TokenId byte_token(char byte) const {
    return byte_ids_[static_cast<unsigned char>(byte)];
  }
  void encode_short(std::string_view piece, std::vector<TokenId>& out) const;
  void encode_long(std::string_view piece, std::vector<TokenId>& out) const;

  std::array<TokenId, 256> byte_ids_;
  std::vector<TokenId> merged_;  // By rank.
  std::vector<Slot> slots_;      // Open addressing, at most half full; size is a power of two.
  std::uint64_t mask_ = 0;
};

}  // namespace jforge
