#include "model/kernels/decode_plan.h"

#include <algorithm>

#include "runtime/error.h"

namespace jforge {

DecodePlan::DecodePlan(const AttentionHeads& heads, DType cache, std::int64_t max_rows)
    : heads_(heads), cache_type_(cache), max_rows_(max_rows) {
  expect(heads.key_heads > 0 && heads.heads % heads.key_heads == 0,
         "attention: query heads must be a multiple of key heads");
}

void DecodePlan::assign(const DecodeBatch& batch) {
  expect(std::ssize(batch.places) <= max_rows_, "a decoding batch has more rows than its plan");
  expect(batch.tokens.empty() || batch.tokens.size() == batch.places.size(),
         "a decoding batch's tokens and rows differ in number");
  batch_ = batch;
  page_limit_ = 0;
  check_places();
  positions_.clear();
  for (const CacheRow& place : batch.places) {
    positions_.push_back(place.position);
  }
  kept_positions_.clear();
  kept_places_.clear();
  std::int64_t last = -1;
  for (const std::int32_t row : batch.kept) {
    expect(row > last && row < std::ssize(batch.places),
           "kept rows must ascend and be of the batch");
    last = row;
    kept_positions_.push_back(positions_[static_cast<std::size_t>(row)]);
    kept_places_.push_back(batch.places[static_cast<std::size_t>(row)]);
  }
  rows_ = rows_on_host(batch.tokens, positions_);
  kept_rows_ = rows_on_host({}, kept_positions_);
  place(rows_, kept_rows_);
}

void DecodePlan::run(std::int32_t /*step*/, const std::function<void()>& work) { work(); }

/// Whether the slot has a page for its row; notes the page.
bool DecodePlan::hold(std::int64_t slot, std::int64_t row) {
  const PageTable& table = batch_.table;
  if (slot < 0 || slot >= table.num_slots() || row < 0 ||
      row >= table.slot_pages * kCachePageRows) {
    return false;
  }
  const std::int32_t page = table.slot(slot)[row / kCachePageRows];
  page_limit_ = std::max(page_limit_, std::int64_t{page} + 1);
  return page >= 0;
}

void DecodePlan::check_places() {
  const PageTable& table = batch_.table;
  expect((batch_.places.empty() && batch_.copies.empty()) ||
             (table.slot_pages > 0 && std::ssize(table.pages) % table.slot_pages == 0),
         "the cache's page table must be [slots, pages of a slot]");
  const std::span<const CacheRow> places = batch_.places;
  for (std::size_t i = 0; i < places.size();) {
    const CacheRow* last = &places[i];  // Last of adjacent rows that follow each other.
    for (const CacheRow& first = places[i]; i < places.size() && places[i].follows(first); ++i) {
      const CacheRow& row = places[i];
      expect(row.fork >= 0 && row.fork <= row.fork_row && row.fork <= row.position &&
                 hold(row.slot, row.row()),
             "decoding row outside the cache");
      last = row.position > last->position ? &row : last;
    }
    expect_seen(*last);
  }
  for (const CacheCopy& copy : batch_.copies) {
    expect(hold(copy.slot, copy.from) && hold(copy.slot, copy.to), "copied row outside the cache");
  }
}

void DecodePlan::expect_seen(const CacheRow& last) {
  const auto expect_pages = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; row += kCachePageRows - row % kCachePageRows) {
      expect(hold(last.slot, row), "a row sees a page that its slot lacks");
    }
  };
  expect_pages(0, last.fork);
  expect_pages(last.fork_row, last.row() + 1);
}

}  // namespace jforge
