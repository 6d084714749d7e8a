#include "data/tokenizer/merge_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>

#include "runtime/error.h"

namespace jforge {
namespace {

// Below this length a quadratic scan is faster than the heap.
constexpr std::size_t kShortPiece = 48;

std::uint64_t pair_key(TokenId left, TokenId right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

std::uint64_t spread(std::uint64_t key) {
  key *= 0x9E3779B97F4A7C15ULL;
  return key ^ (key >> 29);
}

}  // namespace

MergeTable::MergeTable(const std::array<TokenId, 256>& byte_ids, const std::vector<Rule>& rules)
    : byte_ids_(byte_ids) {
  slots_.assign(std::bit_ceil(rules.size() * 2 + 2), Slot{0, kNoRule});
  mask_ = slots_.size() - 1;
  merged_.reserve(rules.size());
  for (std::size_t rank = 0; rank < rules.size(); ++rank) {
    const Rule& rule = rules[rank];
    const std::uint64_t key = pair_key(rule.left, rule.right);
    std::uint64_t place = spread(key) & mask_;
    while (slots_[place].rank != kNoRule) {
      if (slots_[place].key == key) {
        throw DataError(
            fmt::format("merge rule {} repeats rule {} (token ids {} and {}): remove one of them",
                        rank, slots_[place].rank, rule.left, rule.right));
      }
      place = (place + 1) & mask_;
    }
    slots_[place] = Slot{key, static_cast<std::uint32_t>(rank)};
    merged_.push_back(rule.merged);
  }
}

std::uint32_t MergeTable::rank_of(TokenId left, TokenId right) const {
  const std::uint64_t key = pair_key(left, right);
  std::uint64_t place = spread(key) & mask_;
  while (slots_[place].rank != kNoRule && slots_[place].key != key) place = (place + 1) & mask_;
  return slots_[place].rank;
}

void MergeTable::encode_piece(std::string_view piece, std::vector<TokenId>& out) const {
  if (piece.size() <= kShortPiece) {
    encode_short(piece, out);
  } else {
    encode_long(piece, out);
  }
}

void MergeTable::encode_short(std::string_view piece, std::vector<TokenId>& out) const {
  std::array<TokenId, kShortPiece> ids;
  std::array<std::uint32_t, kShortPiece> ranks;  // For the pair that starts here.
  std::size_t count = 0;
  for (const char byte : piece) {
    ids[count] = byte_token(byte);
    count += ids[count] >= 0 ? 1 : 0;
  }
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_of(ids[i], ids[i + 1]);
  while (count > 1) {
    const auto best = std::min_element(ranks.begin(), ranks.begin() + (count - 1));
    if (*best == kNoRule) break;
    const auto at = static_cast<std::size_t>(best - ranks.begin());
    ids[at] = merged_[*best];
    std::copy(ids.begin() + at + 2, ids.begin() + count, ids.begin() + at + 1);
    std::copy(ranks.begin() + at + 1, ranks.begin() + (count - 1), ranks.begin() + at);
    --count;
    if (at + 1 < count) ranks[at] = rank_of(ids[at], ids[at + 1]);
    if (at > 0) ranks[at - 1] = rank_of(ids[at - 1], ids[at]);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + count);
}

void MergeTable::encode_long(std::string_view piece, std::vector<TokenId>& out) const {
  if (piece.size() >= kNoRule) {
    throw DataError(fmt::format("a word of {} bytes is too long to tokenize", piece.size()));
  }
  constexpr std::uint32_t kEnd = 0xFFFFFFFFU;
  // A linked list of symbols with the rank of the pair that starts at each. A heap entry (rank,
  // place) is stale if the rank at that place has changed.
  std::vector<TokenId> ids;
  ids.reserve(piece.size());
  for (const char byte : piece) {
    if (byte_token(byte) >= 0) ids.push_back(byte_token(byte));
  }
  if (ids.empty()) return;
  const auto count = static_cast<std::uint32_t>(ids.size());
  std::vector<std::uint32_t> previous(count);
  std::vector<std::uint32_t> next(count);
  std::vector<std::uint32_t> ranks(count, kNoRule);
  for (std::uint32_t i = 0; i < count; ++i) {
    previous[i] = i == 0 ? kEnd : i - 1;
    next[i] = i + 1 == count ? kEnd : i + 1;
  }
  std::vector<std::uint64_t> entries;
  entries.reserve(count);
  for (std::uint32_t i = 0; i + 1 < count; ++i) {
    ranks[i] = rank_of(ids[i], ids[i + 1]);
    if (ranks[i] != kNoRule) entries.push_back(static_cast<std::uint64_t>(ranks[i]) << 32 | i);
  }
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> heap(
      std::greater<>{}, std::move(entries));
  const auto refresh = [&](std::uint32_t place) {
    ranks[place] = next[place] == kEnd ? kNoRule : rank_of(ids[place], ids[next[place]]);
    if (ranks[place] != kNoRule) {
      heap.push(static_cast<std::uint64_t>(ranks[place]) << 32 | place);
    }
  };
  while (!heap.empty()) {
    const auto rank = static_cast<std::uint32_t>(heap.top() >> 32);
    const auto place = static_cast<std::uint32_t>(heap.top());
    heap.pop();
    if (ranks[place] != rank) continue;
    const std::uint32_t absorbed = next[place];
    ids[place] = merged_[rank];
    ranks[absorbed] = kNoRule;
    next[place] = next[absorbed];
    if (next[place] != kEnd) previous[next[place]] = place;
    refresh(place);
    if (previous[place] != kEnd) refresh(previous[place]);
  }
  for (std::uint32_t i = 0; i != kEnd; i = next[i]) out.push_back(ids[i]);
}

}  // namespace jforge
