#include "model/decoding/ngram_pool.h"

#include <algorithm>

namespace jforge {

void NgramPool::reserve(std::size_t tokens) {
  for (std::vector<TokenId>& entry : entries_) {
    entry.reserve(tokens);
  }
}

void NgramPool::push(std::span<const TokenId> sequence) {
  if (entries_.empty() || sequence.size() < 2) {
    return;
  }
  for (std::size_t i = 0; i < size_; ++i) {
    if (std::ranges::equal(newest(i), sequence)) {
      return;
    }
  }
  entries_[next_].assign(sequence.begin(), sequence.end());
  next_ = (next_ + 1) % entries_.size();
  size_ = std::min(size_ + 1, entries_.size());
}

std::span<const TokenId> NgramPool::from(std::size_t i, TokenId token) const {
  const std::vector<TokenId>& sequence = newest(i);
  return {std::ranges::find(sequence, token), sequence.end()};
}

const std::vector<TokenId>& NgramPool::newest(std::size_t i) const {
  return entries_[(next_ + entries_.size() - 1 - i) % entries_.size()];
}

}  // namespace jforge
