#include "model/kernels/cuda/attention_visits.h"

#include <algorithm>
#include <utility>

#include "runtime/error.h"

namespace jforge {

namespace {

std::int32_t narrow(std::int64_t value) { return static_cast<std::int32_t>(value); }
std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

template <class Work>
void longest_first(std::vector<Work>& blocks) {
  // Not stable_sort, which allocates.
  std::sort(blocks.begin(), blocks.end(), [](const Work& a, const Work& b) {
    return a.length() != b.length() ? a.length() > b.length() : a.order() < b.order();
  });
}

}  // namespace

void AttentionVisits::place(const PackedLayout& layout, std::int64_t group,
                            std::int64_t key_heads) {
  expect(layout.num_rows <= kMostVisitingRows, "more rows are packed than attention counts");
  place_rows(layout);
  seen_.assign(at(divide_up(layout.num_rows, kVisitKeys)), Seen{});
  place_query_tiles(layout.num_rows);
  place_key_tiles();
  place_key_work(group, key_heads);
  longest_first(query_tiles_);
  longest_first(key_work_);
}

void AttentionVisits::place_rows(const PackedLayout& layout) {
  rows_.assign(at(divide_up(layout.num_rows, kQueryTileRows) * kQueryTileRows), RowKeys{});
  for (const AttentionSegment& segment : layout.segments) {
    // Joins a prefix with the run that follows it: fewer masks.
    const bool joined = segment.prefix_end == segment.causal_begin;
    const std::int64_t causal_begin = joined ? segment.prefix_begin : segment.causal_begin;
    const std::int64_t prefix_end = joined ? segment.prefix_begin : segment.prefix_end;
    for (std::int64_t row = segment.row_begin; row < segment.row_end; ++row) {
      rows_[at(row)] = {narrow(segment.prefix_begin), narrow(prefix_end), narrow(causal_begin),
                        narrow(row + 1)};
    }
  }
}

/// Notes what a strip's rows see, together for rows with equal intervals.
void AttentionVisits::note_strip(std::int64_t row_begin, std::int64_t row_end, unsigned strip) {
  const std::uint32_t own = 1U << strip;
  const auto note = [&](std::int64_t first_key, std::int64_t last_key, auto complete_rows) {
    if (first_key == last_key) {
      return;
    }
    for (std::int64_t place = first_key / kVisitKeys; place * kVisitKeys < last_key; ++place) {
      Seen& seen = seen_[at(place)];
      if ((seen.strips & own) == 0) {
        seen.strips |= own;
        seen.complete_rows = 0;
      }
      seen.complete_rows += narrow(complete_rows(place * kVisitKeys));
      if (seen.complete_rows == row_end - row_begin) {
        seen.strips |= own << kTileStrips;
      }
    }
  };
  for (std::int64_t begin = row_begin; begin < row_end;) {
    const RowKeys keys = rows_[at(begin)];
    std::int64_t end = begin + 1;
    while (end < row_end && rows_[at(end)].causal_begin == keys.causal_begin &&
           rows_[at(end)].prefix_begin == keys.prefix_begin &&
           rows_[at(end)].prefix_end == keys.prefix_end) {
      ++end;
    }
    note(keys.prefix_begin, keys.prefix_end, [&](std::int64_t first) {
      const bool inside = keys.prefix_begin <= first && first + kVisitKeys <= keys.prefix_end;
      return inside ? end - begin : 0;
    });
    note(keys.causal_begin, end, [&](std::int64_t first) {
      const std::int64_t first_row = std::max(begin, first + kVisitKeys - 1);
      return keys.causal_begin <= first ? std::max<std::int64_t>(end - first_row, 0) : 0;
    });
    begin = end;
  }
}

void AttentionVisits::place_query_tiles(std::int64_t num_rows) {
  query_tiles_.clear();
  key_visits_.clear();
  for (std::int64_t tile = 0; tile * kQueryTileRows < num_rows; ++tile) {
    for (unsigned strip = 0; strip < kTileStrips; ++strip) {
      const std::int64_t begin = tile * kQueryTileRows + strip * kStripRows;
      note_strip(begin, std::min(begin + kStripRows, num_rows), strip);
    }
    const std::int32_t first = narrow(std::ssize(key_visits_));
    for (std::int64_t place = 0; place < std::ssize(seen_); ++place) {
      if (const std::uint32_t strips = std::exchange(seen_[at(place)], {}).strips; strips != 0) {
        key_visits_.push_back({narrow(place), strips});
      }
    }
    query_tiles_.push_back({narrow(tile), first, narrow(std::ssize(key_visits_))});
  }
}

void AttentionVisits::place_key_tiles() {
  // Counts, then begins, then visits.
  constexpr std::int32_t kVisits = kKeyTileRows / kVisitKeys;
  key_tiles_.assign(at(divide_up(std::ssize(seen_), kVisits)), TileWork{});
  const auto each_strip = [&](auto use) {
    for (const TileWork& query_tile : query_tiles_) {
      for (std::int32_t i = query_tile.begin; i < query_tile.end;) {
        // Seen if any visit is, complete if all are.
        const std::int32_t tile = key_visits_[at(i)].place / kVisits;
        std::uint32_t any = 0;
        std::uint32_t all = ~0U;
        std::int32_t count = 0;
        for (; i < query_tile.end && key_visits_[at(i)].place / kVisits == tile; ++i, ++count) {
          any |= key_visits_[at(i)].strips;
          all &= key_visits_[at(i)].strips;
        }
        const KeyVisit seen{tile, any};
        const KeyVisit complete{tile, count == kVisits ? all : 0};
        for (unsigned strip = 0; strip < kTileStrips; ++strip) {
          if (seen.seen_by(strip)) {
            use(key_tiles_[at(tile)], StripVisit{narrow(query_tile.tile * kTileStrips + strip),
                                                 complete.complete_for(strip) ? 1 : 0});
          }
        }
      }
    }
  };
  each_strip([](TileWork& key_tile, const StripVisit& /*visit*/) { ++key_tile.end; });
  std::int32_t next = 0;
  for (std::int32_t tile = 0; tile < std::ssize(key_tiles_); ++tile) {
    TileWork& work = key_tiles_[at(tile)];
    const std::int32_t visits = work.end;
    work = {tile, next, next};
    next += visits;
  }
  strip_visits_.resize(at(next));
  each_strip([&](TileWork& key_tile, const StripVisit& visit) {
    strip_visits_[at(key_tile.end++)] = visit;
  });
}

void AttentionVisits::place_key_work(std::int64_t group, std::int64_t key_heads) {
  key_work_.clear();
  split_tiles_.clear();
  const std::int64_t all_steps = std::ssize(strip_visits_) * group * key_heads;
  const std::int64_t most = std::max(divide_up(all_steps, kKeyBlocks), kLeastSteps);
  std::int32_t next_part = 0;
  for (const TileWork& tile : key_tiles_) {
    const std::int64_t steps = (tile.end - tile.begin) * group;
    const std::int64_t parts = divide_up(steps, most);
    KeyWork work{tile.tile, tile.begin, tile.end, 0, narrow(steps), -1};
    if (parts > 1) {
      split_tiles_.push_back({tile.tile, next_part, next_part + narrow(parts)});
      for (std::int64_t part = 0; part < parts; ++part) {
        work.first_step = narrow(steps * part / parts);
        work.last_step = narrow(steps * (part + 1) / parts);
        work.part = next_part++;
        key_work_.push_back(work);
      }
    } else {
      key_work_.push_back(work);
    }
  }
}

}  // namespace jforge
