#pragma once

/// Index data of a decoding forward on the set's device: rows, their cache places and visible keys.
/// Checked and copied once, not per layer.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/kernels/packed_plan.h"
#include "runtime/ids.h"

namespace jforge {

/// Place of a decoding row in the key/value cache. A sequence's own rows lie at their positions. An
/// alternative's lie elsewhere in the slot, consecutively: the row of position `fork`, its first,
/// at `fork_row`. A row sees positions 0 … fork − 1 of the sequence, then its alternative up to
/// itself.
struct CacheRow {
  std::int32_t slot = 0;
  std::int32_t position = 0;
  std::int32_t fork = 0;      ///< ≤ position; 0 with fork_row 0: the sequence's own row.
  std::int32_t fork_row = 0;  ///< ≥ fork

  /// Row of the slot that holds its key and value.
  [[nodiscard]] std::int64_t row() const noexcept {
    return std::int64_t{fork_row} + position - fork;
  }
  /// Whether both belong to one sequence or alternative and so see the same keys up to the smaller
  /// position.
  [[nodiscard]] bool follows(const CacheRow& other) const noexcept {
    return slot == other.slot && fork == other.fork && fork_row == other.fork_row;
  }
};

/// Copies a cache row within its slot.
struct CacheCopy {
  std::int32_t slot = 0;
  std::int32_t from = 0;
  std::int32_t to = 0;
};

/// Rows of a cache page, attention's tile of keys.
inline constexpr std::int64_t kCachePageRows = 64;

/// Row r of a slot lies in the slot's page r / kCachePageRows at r % kCachePageRows. No page
/// belongs to two slots.
struct PageTable {
  std::span<const std::int32_t> pages;  ///< [slots, slot_pages]; −1: no page.
  std::int64_t slot_pages = 0;

  [[nodiscard]] std::int64_t num_slots() const noexcept { return std::ssize(pages) / slot_pages; }
  /// Returns [slot_pages].
  [[nodiscard]] const std::int32_t* slot(std::int64_t slot) const noexcept {
    return pages.data() + slot * slot_pages;
  }
  /// Returns the index of a slot's row in the cache seen as [pages · kCachePageRows, …].
  [[nodiscard]] std::int64_t place(std::int64_t in_slot, std::int64_t row) const noexcept {
    return slot(in_slot)[row / kCachePageRows] * kCachePageRows + row % kCachePageRows;
  }
};

/// Any of the spans may be empty.
struct DecodeBatch {
  std::span<const TokenId> tokens;     ///< [M], or empty if no row is embedded.
  std::span<const CacheRow> places;    ///< [M]; distinct if written.
  std::span<const std::int32_t> kept;  ///< Rows that pass the last layer, ascending.
  /// No row is both read and written, or written twice.
  std::span<const CacheCopy> copies;
  PageTable table;
  /// Allows the plan to append meaningless rows, so that few row counts occur and run() can replay.
  bool padded = false;
};

enum class DecodeRows : std::uint8_t { all, kept };

/// Plans one batch at a time, for functions of the kernel set that made it. Memory grows to the
/// largest batch and is reused.
class DecodePlan {
 public:
  /// `cache`: the cache's element type. `max_rows` bounds a batch with its padding. Throws
  /// InternalError if key heads do not divide query heads.
  DecodePlan(const AttentionHeads& heads, DType cache, std::int64_t max_rows);
  virtual ~DecodePlan() = default;
  DecodePlan(const DecodePlan&) = delete;
  DecodePlan& operator=(const DecodePlan&) = delete;

  /// Plans `batch`; its spans must outlive the plan's use. Throws InternalError unless all rows,
  /// seen rows and copies lie in pages of their slots, kept rows ascend, and every row or none has
  /// a token.
  void assign(const DecodeBatch& batch);

  [[nodiscard]] const AttentionHeads& heads() const noexcept { return heads_; }
  [[nodiscard]] DType cache_type() const noexcept { return cache_type_; }
  [[nodiscard]] std::int64_t max_rows() const noexcept { return max_rows_; }
  [[nodiscard]] const DecodeBatch& batch() const noexcept { return batch_; }
  /// The batch's places, [M] or the kept ones, on the host.
  [[nodiscard]] std::span<const CacheRow> places(DecodeRows which) const noexcept {
    return which == DecodeRows::all ? batch_.places : kept_places_;
  }
  /// Rows with padding.
  [[nodiscard]] const PlannedRows& rows(DecodeRows which) const noexcept {
    return which == DecodeRows::all ? rows_ : kept_rows_;
  }
  [[nodiscard]] std::int64_t num_rows(DecodeRows which) const noexcept {
    return rows(which).positions.elements();
  }
  [[nodiscard]] bool keeps_all() const noexcept {
    return batch_.kept.size() == batch_.places.size();
  }
  /// 1 + the largest page that is used: the pages a cache must have.
  [[nodiscard]] std::int64_t page_limit() const noexcept { return page_limit_; }

  /// Calls `work`, or replays on the device what it did for a batch with as many rows. `work` may
  /// only call functions of the set, with this plan and tensors that do not move. `step` identifies
  /// it.
  virtual void run(std::int32_t step, const std::function<void()>& work);
  /// Returns the run() calls that replayed.
  [[nodiscard]] virtual std::int64_t replays() const noexcept { return 0; }

 protected:
  [[nodiscard]] std::span<const std::int32_t> positions(DecodeRows which) const noexcept {
    return which == DecodeRows::all ? positions_ : kept_positions_;
  }

 private:
  /// Copies the index data to the device; receives host views and replaces them by device views.
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
