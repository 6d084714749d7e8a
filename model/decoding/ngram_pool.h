#pragma once

/// Token sequences that earlier forwards of a request rejected (METHOD.md §6.3).

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// Keeps the newest `capacity` different sequences, first in, first out.
class NgramPool {
 public:
  explicit NgramPool(std::size_t capacity) : entries_(capacity) {}

  void reserve(std::size_t tokens);
  /// Drops the oldest if full. Ignores sequences already kept or with fewer than two tokens.
  void push(std::span<const TokenId> sequence);
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// The i-th newest sequence from its first `token` on; empty without `token`.
  [[nodiscard]] std::span<const TokenId> from(std::size_t i, TokenId token) const;

 private:
  [[nodiscard]] const std::vector<TokenId>& newest(std::size_t i) const;

  std::vector<std::vector<TokenId>> entries_;
  std::size_t next_ = 0;  ///< Index of the next write.
  std::size_t size_ = 0;
};

}  // namespace jforge
