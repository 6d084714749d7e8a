#pragma once

/// Which pages of a key/value cache each slot has: sequences of very different lengths share one
/// pool, and none holds more than its rows need. A slot that reserves what its sequence can need at
/// most gets every page it asks for; so whether a sequence fits is decided before it begins, never
/// in its middle.

#include <cstdint>
#include <vector>

#include "model/kernels/kernel_set.h"

namespace jforge {

/// Pages that so many rows take, the first at a page's begin.
[[nodiscard]] constexpr std::int64_t cache_pages(std::int64_t rows) noexcept {
  return (rows + kCachePageRows - 1) / kCachePageRows;
}
/// Pages of a sequence: its positions, and from a page of their own on its rows of alternatives.
[[nodiscard]] constexpr std::int64_t cache_pages(std::int64_t positions,
                                                 std::int64_t branch_rows) noexcept {
  return cache_pages(positions) + cache_pages(branch_rows);
}

/// What sequences that are decoded together take at most: those of `slots` that take most.
class BatchPages {
 public:
  explicit BatchPages(std::int64_t slots) : slots_(slots) {}
  void add(std::int64_t pages);
  /// Of one sequence.
  [[nodiscard]] std::int64_t largest() const noexcept { return largest_; }
  /// Of all that run at once.
  [[nodiscard]] std::int64_t most() const noexcept { return most_; }

 private:
  std::int64_t slots_;
  std::int64_t largest_ = 0;
  std::int64_t most_ = 0;
  std::vector<std::int64_t> taken_;  ///< [≤ slots]: a heap with the smallest in front.
};

/// Allocates nothing once built. Not thread-safe.
class CachePages {
 public:
  /// All pages are free. Throws InternalError for a count that is less than 1.
  CachePages(std::int64_t num_pages, std::int64_t num_slots, std::int64_t slot_pages);

  /// Shows what slots have, now and later.
  [[nodiscard]] PageTable table() const noexcept { return {table_, slot_pages_}; }
  /// Pages that are no slot's and set aside for none.
  [[nodiscard]] std::int64_t free_pages() const noexcept { return std::ssize(free_) - promised_; }
  /// Takes back all that `slot` has and sets `count` pages aside for it. False where fewer are
  /// free: then it has nothing.
  [[nodiscard]] bool reserve(std::int64_t slot, std::int64_t count);
  /// Gives `slot` a page for its rows from index · kCachePageRows on, unless it has one: of what is
  /// set aside for it, or, when it reserved nothing, of what is free. Throws InternalError when
  /// that is used up.
  void provide(std::int64_t slot, std::int64_t index);
  /// Takes back all that `slot` has.
  void release(std::int64_t slot);

 private:
  /// Of a slot that reserved nothing.
  static constexpr std::int64_t kUnreserved = -1;

  std::int64_t slot_pages_;
  std::vector<std::int32_t> free_;       ///< The one returned last is given out next.
  std::vector<std::int32_t> table_;      ///< [slots, slot_pages]; −1: none.
  std::vector<std::int64_t> set_aside_;  ///< Of each slot, pages it may still get; or kUnreserved.
  std::int64_t promised_ = 0;            ///< Their sum.
};

}  // namespace jforge
