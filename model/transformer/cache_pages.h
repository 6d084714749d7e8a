#pragma once

/// The page table of a KV cache, from whose pool all slots take pages as their rows need them. A
/// slot that reserves its sequence's maximum never runs out of pages, so a sequence is refused
/// before it begins or not at all.

#include <cstdint>
#include <vector>

#include "model/kernels/kernel_set.h"

namespace jforge {

/// Returns the pages that `rows` rows take.
[[nodiscard]] constexpr std::int64_t cache_pages(std::int64_t rows) noexcept {
  return (rows + kCachePageRows - 1) / kCachePageRows;
}
/// Returns the pages of a sequence; rows of alternative drafts begin on a page of their own.
[[nodiscard]] constexpr std::int64_t cache_pages(std::int64_t positions,
                                                 std::int64_t branch_rows) noexcept {
  return cache_pages(positions) + cache_pages(branch_rows);
}

/// Upper bounds on the pages of sequences that are decoded `slots` at a time.
class BatchPages {
 public:
  explicit BatchPages(std::int64_t slots) : slots_(slots) {}
  void add(std::int64_t pages);
  /// Returns the pages of the largest sequence.
  [[nodiscard]] std::int64_t largest() const noexcept { return largest_; }
  /// Returns the pages of the `slots` largest together.
  [[nodiscard]] std::int64_t most() const noexcept { return most_; }

 private:
  std::int64_t slots_;
  std::int64_t largest_ = 0;
  std::int64_t most_ = 0;
  std::vector<std::int64_t> taken_;  ///< [≤ slots] Min-heap.
};

/// Allocates only in its constructor. Not thread-safe.
class CachePages {
 public:
  /// Throws InternalError if a count is below 1.
  CachePages(std::int64_t num_pages, std::int64_t num_slots, std::int64_t slot_pages);

  /// Returns a view that follows later changes.
  [[nodiscard]] PageTable table() const noexcept { return {table_, slot_pages_}; }
  /// Returns the pages that no slot holds or has reserved.
  [[nodiscard]] std::int64_t free_pages() const noexcept { return std::ssize(free_) - promised_; }
  /// Releases the slot's pages and reserves `count`. Returns false if fewer are free: then the slot
  /// has none.
  [[nodiscard]] bool reserve(std::int64_t slot, std::int64_t count);
  /// Gives `slot` its page `index` unless it has it, from its reservation if it made one. Throws
  /// InternalError if no page is left.
  void provide(std::int64_t slot, std::int64_t index);
  void release(std::int64_t slot);

 private:
  static constexpr std::int64_t kUnreserved = -1;

  std::int64_t slot_pages_;
  std::vector<std::int32_t> free_;       ///< A stack.
  std::vector<std::int32_t> table_;      ///< [slots, slot_pages]; −1: none.
  std::vector<std::int64_t> set_aside_;  ///< [slots] Reserved pages that are left, or kUnreserved.
  std::int64_t promised_ = 0;            ///< Their sum.
};

}  // namespace jforge
