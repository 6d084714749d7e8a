#pragma once

/// The index data of one forward of decoding where kernels can read them: which rows there are,
/// where in the cache they lie and what they see. Checked and brought there once, not at every
/// layer.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/kernels/packed_plan.h"
#include "runtime/ids.h"

namespace jforge {

/// Place of a decoding row in the key/value cache. A sequence's own rows lie where their positions
/// say. Rows of an alternative draft lie elsewhere in the slot, one behind the other: that of
/// position `fork`, the first they do not share with the sequence, at `fork_row`. A row sees
/// positions 0 … fork − 1 of the sequence, then those of its alternative up to its own.
struct CacheRow {
  std::int32_t slot = 0;      ///< Sequence's slot.
  std::int32_t position = 0;  ///< Absolute.
  std::int32_t fork = 0;      ///< ≤ position; 0 with fork_row 0: a row of the sequence itself.
  std::int32_t fork_row = 0;  ///< ≥ fork

  /// Where in the slot its key and value lie.
  [[nodiscard]] std::int64_t row() const noexcept {
    return std::int64_t{fork_row} + position - fork;
  }
  /// Whether both are rows of one sequence or of one alternative: they see the same keys up to the
  /// position of the one that comes first.
  [[nodiscard]] bool follows(const CacheRow& other) const noexcept {
    return slot == other.slot && fork == other.fork && fork_row == other.fork_row;
  }
};

/// A cache row that is copied to another place of its slot.
struct CacheCopy {
  std::int32_t slot = 0;
  std::int32_t from = 0;
  std::int32_t to = 0;
};

/// Rows of a cache page: a tile of the keys that attention takes together.
inline constexpr std::int64_t kCachePageRows = 64;

/// Which pages a slot's rows lie in: row r in the (r / kCachePageRows)-th of the slot, at
/// r % kCachePageRows. No page belongs to two slots.
struct PageTable {
  std::span<const std::int32_t> pages;  ///< [slots, slot_pages]; −1 where the slot has none.
  std::int64_t slot_pages = 0;

  [[nodiscard]] std::int64_t num_slots() const noexcept { return std::ssize(pages) / slot_pages; }
  /// [slot_pages]
  [[nodiscard]] const std::int32_t* slot(std::int64_t slot) const noexcept {
    return pages.data() + slot * slot_pages;
  }
  /// The row of the cache, seen as [pages · kCachePageRows, …], that holds a slot's row.
  [[nodiscard]] std::int64_t place(std::int64_t in_slot, std::int64_t row) const noexcept {
    return slot(in_slot)[row / kCachePageRows] * kCachePageRows + row % kCachePageRows;
  }
};

/// What a plan is made of. Any of the spans may be empty.
struct DecodeBatch {
  std::span<const TokenId> tokens;     ///< [M], or none where no row is embedded.
  std::span<const CacheRow> places;    ///< [M]; no two rows at the same place where any is written.
  std::span<const std::int32_t> kept;  ///< Rows that go on through the last layer, ascending.
  /// No row is both read and written, or written twice.
  std::span<const CacheCopy> copies;
  PageTable table;
  /// Whether the plan may add rows that mean nothing behind the batch's, so that few numbers of
  /// rows occur and run() can replay.
  bool padded = false;
};

/// Which of a plan's rows a function takes.
enum class DecodeRows : std::uint8_t { all, kept };

/// Of one batch at a time. Made by a kernel set (KernelSet::make_decode_plan) for its own
/// functions; memory grows to the largest batch and is reused.
class DecodePlan {
 public:
  /// Throws InternalError when the numbers of heads do not fit. `cache`: type of the cache's
  /// elements. `max_rows`: a batch has no more, and a plan adds none beyond them.
  DecodePlan(const AttentionHeads& heads, DType cache, std::int64_t max_rows);
  virtual ~DecodePlan() = default;
  DecodePlan(const DecodePlan&) = delete;
  DecodePlan& operator=(const DecodePlan&) = delete;

  /// Plans `batch`, whose spans must stay as they are while the plan is used. Throws InternalError
  /// unless every row, what it sees and what is copied lies in pages of its slot, the kept rows
  /// ascend, and there is a token for every row or none.
  void assign(const DecodeBatch& batch);

  [[nodiscard]] const AttentionHeads& heads() const noexcept { return heads_; }
  [[nodiscard]] DType cache_type() const noexcept { return cache_type_; }
  [[nodiscard]] std::int64_t max_rows() const noexcept { return max_rows_; }
  [[nodiscard]] const DecodeBatch& batch() const noexcept { return batch_; }
  /// Where the batch's rows lie, [M] or those that are kept, on the host.
  [[nodiscard]] std::span<const CacheRow> places(DecodeRows which) const noexcept {
    return which == DecodeRows::all ? batch_.places : kept_places_;
  }
  /// Rows as functions take them: the batch's and what the plan adds.
  [[nodiscard]] const PlannedRows& rows(DecodeRows which) const noexcept {
    return which == DecodeRows::all ? rows_ : kept_rows_;
  }
  [[nodiscard]] std::int64_t num_rows(DecodeRows which) const noexcept {
    return rows(which).positions.elements();
  }
  [[nodiscard]] bool keeps_all() const noexcept {
    return batch_.kept.size() == batch_.places.size();
  }
  /// 1 + the largest page that a row or a copy lies in or sees: pages that a cache must have.
  [[nodiscard]] std::int64_t page_limit() const noexcept { return page_limit_; }

  /// Calls `work`, or has the device do what it did when it was called for a batch that had as many
  /// rows: it may call nothing but functions of the set, with this plan and tensors that stay where
  /// they are for as long as the plan. `step` tells one work from others.
  virtual void run(std::int32_t step, const std::function<void()>& work);
  /// Calls of run() that did not call their work.
  [[nodiscard]] virtual std::int64_t replays() const noexcept { return 0; }

 protected:
  [[nodiscard]] std::span<const std::int32_t> positions(DecodeRows which) const noexcept {
    return which == DecodeRows::all ? positions_ : kept_positions_;
  }

 private:
  /// Brings the batch's index data to the device and makes views of them there, from those of host
  /// memory.
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
