#pragma once

/// Token sequences that earlier forwards of a request rejected (METHOD.md §6.3).

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// The newest `capacity` different sequences, first in, first out.
class NgramPool {
 public:
  explicit NgramPool(std::size_t capacity) : entries_(capacity) {}

  /// Room for sequences of so many tokens: shorter ones will allocate nothing.
  void reserve(std::size_t tokens);
  /// Keeps `sequence`, and drops the oldest where there is no room. One that is kept already, or
  /// too short to continue anything (fewer than two tokens), changes nothing.
  void push(std::span<const TokenId> sequence);
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// The i-th newest sequence from its first `token` on; empty when it does not hold it.
  [[nodiscard]] std::span<const TokenId> from(std::size_t i, TokenId token) const;

 private:
  [[nodiscard]] const std::vector<TokenId>& newest(std::size_t i) const;

  std::vector<std::vector<TokenId>> entries_;
  std::size_t next_ = 0;  ///< Where the next one goes.
  std::size_t size_ = 0;
};

}  // namespace jforge
