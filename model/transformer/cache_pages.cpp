#include "model/transformer/cache_pages.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <ranges>
#include <span>

#include "runtime/error.h"

namespace jforge {

void BatchPages::add(std::int64_t pages) {
  largest_ = std::max(largest_, pages);
  most_ += pages;
  taken_.push_back(pages);
  std::ranges::push_heap(taken_, std::greater{});
  if (std::ssize(taken_) > slots_) {
    std::ranges::pop_heap(taken_, std::greater{});
    most_ -= taken_.back();
    taken_.pop_back();
  }
}

CachePages::CachePages(std::int64_t num_pages, std::int64_t num_slots, std::int64_t slot_pages)
    : slot_pages_(slot_pages) {
  expect(num_pages >= 1 && num_slots >= 1 && slot_pages >= 1 &&
             num_pages <= std::numeric_limits<std::int32_t>::max(),
         "a cache needs pages and slots");
  free_.resize(static_cast<std::size_t>(num_pages));
  for (std::size_t i = 0; i < free_.size(); ++i) {
    free_[i] = static_cast<std::int32_t>(free_.size() - 1 - i);
  }
  table_.assign(static_cast<std::size_t>(num_slots * slot_pages), -1);
  set_aside_.assign(static_cast<std::size_t>(num_slots), kUnreserved);
}

bool CachePages::reserve(std::int64_t slot, std::int64_t count) {
  expect(count >= 1 && count <= slot_pages_, "a slot cannot have so many cache pages");
  release(slot);
  if (count > free_pages()) {
    return false;
  }
  set_aside_[static_cast<std::size_t>(slot)] = count;
  promised_ += count;
  return true;
}

void CachePages::provide(std::int64_t slot, std::int64_t index) {
  std::int32_t& page = table_.at(static_cast<std::size_t>(slot * slot_pages_ + index));
  if (page >= 0) {
    return;
  }
  std::int64_t& set_aside = set_aside_.at(static_cast<std::size_t>(slot));
  if (set_aside == kUnreserved) {
    expect(free_pages() > 0, "no page of the key/value cache is free");
  } else {
    expect(set_aside > 0, "a sequence needs more cache pages than were reserved for it");
    --set_aside;
    --promised_;
  }
  page = free_.back();
  free_.pop_back();
}

void CachePages::release(std::int64_t slot) {
  std::int64_t& set_aside = set_aside_.at(static_cast<std::size_t>(slot));
  promised_ -= std::max<std::int64_t>(set_aside, 0);
  set_aside = kUnreserved;
  const auto pages = std::span(table_).subspan(static_cast<std::size_t>(slot * slot_pages_),
                                               static_cast<std::size_t>(slot_pages_));
  // In reverse, so that the slot's next first page is its present one.
  for (std::int32_t& page : std::views::reverse(pages)) {
    if (page >= 0) {
      free_.push_back(page);
      page = -1;
    }
  }
}

}  // namespace jforge
