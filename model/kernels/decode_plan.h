#pragma once

/// Index data of a decoding forward on the set's device, checked and copied once, not per layer.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/kernels/packed_plan.h"
#include "runtime/ids.h"

namespace jforge {

/// Place of a decoding row in the key/value cache. A sequence's rows lie at their positions. An
/// alternative's lie together elsewhere in the slot, from position `fork` at row `fork_row` on.
/// They see positions 0 … fork − 1 of the sequence, then their alternative.
struct CacheRow {
  std::int32_t slot = 0;
  std::int32_t position = 0;
  std::int32_t fork = 0;      ///< ≤ position; 0 with fork_row 0: the sequence's own.
  std::int32_t fork_row = 0;  ///< ≥ fork

  /// Row of the slot that holds key and value.
  [[nodiscard]] std::int64_t row() const noexcept {
    return std::int64_t{fork_row} + position - fork;
  }
  /// Whether both see the same keys up to the smaller position.
  [[nodiscard]] bool follows(const CacheRow& other) const noexcept {
    return slot == other.slot && fork == other.fork && fork_row == other.fork_row;
  }
};

struct CacheCopy {
  std::int32_t slot = 0;
  std::int32_t from = 0;
  std::int32_t to = 0;
};

inline constexpr std::int64_t kCachePageRows = 64;

/// Row r of a slot lies in its page r / kCachePageRows at r % kCachePageRows. Pages are not shared.
struct PageTable {
  std::span<const std::int32_t> pages;  ///< [slots, slot_pages]; −1: no page.
  std::int64_t slot_pages = 0;

  [[nodiscard]] std::int64_t num_slots() const noexcept { return std::ssize(pages) / slot_pages; }
  [[nodiscard]] const std::int32_t* slot(std::int64_t slot) const noexcept {
    return pages.data() + slot * slot_pages;
  }
  /// Returns a slot's row in the cache seen as [pages · kCachePageRows, …].
  [[nodiscard]] std::int64_t place(std::int64_t in_slot, std::int64_t row) const noexcept {
    return slot(in_slot)[row / kCachePageRows] * kCachePageRows + row % kCachePageRows;
  }
};

struct DecodeBatch {
  std::span<const TokenId> tokens;     ///< [M], or empty.
  std::span<const CacheRow> places;    ///< [M]; distinct if written.
  std::span<const std::int32_t> kept;  ///< Rows that pass the last layer, ascending.
  /// No row is both read and written, or written twice.
  std::span<const CacheCopy> copies;
  PageTable table;
  /// Allows padding rows, so that row counts repeat and run() can replay.
  bool padded = false;
};

enum class DecodeRows : std::uint8_t { all, kept };

/// One batch at a time, for functions of the set that made the plan. Reuses its memory.
class DecodePlan {
 public:
  /// `cache`: the cache's element type. `max_rows` includes padding. Throws InternalError if key
  /// heads do not divide query heads.
  DecodePlan(const AttentionHeads& heads, DType cache, std::int64_t max_rows);
  virtual ~DecodePlan() = default;
  DecodePlan(const DecodePlan&) = delete;
  DecodePlan& operator=(const DecodePlan&) = delete;

  /// Requires: the batch's spans outlive the plan's use. Throws InternalError unless rows, seen
  /// rows and copies lie in pages of their slots, kept rows ascend, and all or no rows have tokens.
  void assign(const DecodeBatch& batch);

  [[nodiscard]] const AttentionHeads& heads() const noexcept { return heads_; }
  [[nodiscard]] DType cache_type() const noexcept { return cache_type_; }
  [[nodiscard]] std::int64_t max_rows() const noexcept { return max_rows_; }
  [[nodiscard]] const DecodeBatch& batch() const noexcept { return batch_; }
  /// On the host.
  [[nodiscard]] std::span<const CacheRow> places(DecodeRows which) const noexcept {
    return which == DecodeRows::all ? batch_.places : kept_places_;
  }
  /// With padding.
  [[nodiscard]] const PlannedRows& rows(DecodeRows which) const noexcept {
    return which == DecodeRows::all ? rows_ : kept_rows_;
  }
  [[nodiscard]] std::int64_t num_rows(DecodeRows which) const noexcept {
    return rows(which).positions.elements();
  }
  [[nodiscard]] bool keeps_all() const noexcept {
    return batch_.kept.size() == batch_.places.size();
  }
  /// 1 + the largest page in use.
  [[nodiscard]] std::int64_t page_limit() const noexcept { return page_limit_; }

  /// Calls `work`, or replays on the device what it did for a batch of equal size. `work` may only
  /// call functions of the set with this plan and tensors that do not move. `step` identifies it.
  virtual void run(std::int32_t step, const std::function<void()>& work);
  [[nodiscard]] virtual std::int64_t replays() const noexcept { return 0; }

 protected:
  [[nodiscard]] std::span<const std::int32_t> positions(DecodeRows which) const noexcept {
    return which == DecodeRows::all ? positions_ : kept_positions_;
  }

 private:
  /// Copies the index data to the device and replaces the host views by device views.
  virtual void place(PlannedRows& rows, PlannedRows& kept) = 0;
  [[nodiscard]] bool hold(std::int64_t slot, std::int64_t row);
  void check_places();
  void expect_seen(const CacheRow& last);

  AttentionHeads heads_;
  DType cache_type_;
  std::int64_t max_rows_;
  DecodeBatch batch_;
  PlannedRows rows_;
  PlannedRows kept_rows_;
  std::int64_t page_limit_ = 0;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> kept_positions_;
  std::vector<CacheRow> kept_places_;
};

}  // namespace jforge
