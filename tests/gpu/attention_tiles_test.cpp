#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <set>
#include <tuple>

#include "model/kernels/cuda/attention_visits.h"
#include "model/kernels/cuda/device_code.h"
#include "model/kernels/cuda/tile_sizes.h"
#include "tests/support/kernel_calls.h"

namespace jforge::test {
namespace {

PackedLayout random_layout(unsigned seed, std::int64_t rows) {
  std::mt19937 random(seed);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(limit));
  };
  PackedLayout layout{.num_rows = rows, .segments = {}};
  for (std::int64_t row = 0; row < rows;) {
    const std::int64_t end = std::min(rows, row + 1 + below(below(4) == 0 ? 150 : 30));
    const std::int64_t causal = below(3) == 0 ? below(row + 1) : row;
    const std::int64_t prefix_end = below(causal + 1);
    const std::int64_t prefix_begin = below(2) == 0 ? 0 : below(prefix_end + 1);
    layout.segments.push_back({row, end, std::min(prefix_begin, prefix_end), prefix_end, causal});
    row = end;
  }
  return layout;
}

using Visit = std::tuple<std::int64_t, std::int64_t, bool>;  ///< (strip, key tile, complete).

std::set<Visit> visits_by_definition(const PackedLayout& layout, std::int64_t keys) {
  std::set<Visit> visits;
  for (std::int64_t strip = 0; strip * kStripRows < layout.num_rows; ++strip) {
    const std::int64_t row_end = std::min((strip + 1) * kStripRows, layout.num_rows);
    for (std::int64_t tile = 0; tile * keys < layout.num_rows; ++tile) {
      bool any = false;
      bool all = true;
      for (std::int64_t row = strip * kStripRows; row < row_end; ++row) {
        for (std::int64_t key = tile * keys; key < (tile + 1) * keys; ++key) {
          const bool sees = key < layout.num_rows && visible(layout, row, key);
          any = any || sees;
          all = all && sees;
        }
      }
      if (any) {
        visits.emplace(strip, tile, all);
      }
    }
  }
  return visits;
}

template <class Work>
void expect_longest_first(const std::vector<Work>& blocks) {
  EXPECT_TRUE(std::ranges::is_sorted(blocks, std::greater{}, &Work::length));
}

std::set<Visit> visits_of_queries(const AttentionVisits& visits) {
  std::set<Visit> found;
  for (const TileWork& work : visits.query_tiles()) {
    std::int32_t last = -1;
    for (std::int32_t i = work.begin; i < work.end; ++i) {
      const KeyVisit& visit = visits.key_visits()[static_cast<std::size_t>(i)];
      EXPECT_LT(last, visit.place);
      last = visit.place;
      for (unsigned strip = 0; strip < kTileStrips; ++strip) {
        EXPECT_LE(visit.complete_for(strip), visit.seen_by(strip));
        if (visit.seen_by(strip)) {
          found.emplace(work.tile * kTileStrips + strip, visit.place, visit.complete_for(strip));
        }
      }
    }
  }
  return found;
}

std::set<Visit> visits_of_keys(const AttentionVisits& visits) {
  std::set<Visit> found;
  for (const KeyWork& work : visits.key_work()) {
    std::int32_t last = -1;
    for (std::int32_t i = work.begin; i < work.end; ++i) {
      const StripVisit& visit = visits.strip_visits()[static_cast<std::size_t>(i)];
      EXPECT_LT(last, visit.strip);
      last = visit.strip;
      found.emplace(visit.strip, work.tile, visit.complete != 0);
    }
  }
  return found;
}

/// Every step of every key tile belongs to one block, parts in ascending order.
void expect_all_steps(const AttentionVisits& visits, std::int64_t group) {
  std::vector<KeyWork> blocks = visits.key_work();
  std::ranges::sort(blocks, {}, &KeyWork::order);
  std::int32_t next_step = 0;
  std::int32_t next_part = 0;
  for (const KeyWork& work : blocks) {
    EXPECT_EQ(work.first_step, next_step);
    EXPECT_LT(work.first_step, work.last_step);
    next_step = work.last_step == (work.end - work.begin) * group ? 0 : work.last_step;
    const bool whole = work.first_step == 0 && next_step == 0;
    EXPECT_EQ(work.part, whole ? -1 : next_part++);
  }
  EXPECT_EQ(next_step, 0);
  EXPECT_EQ(visits.num_parts(), next_part);
  std::int32_t next_first = 0;
  for (const SplitTile& split : visits.split_tiles()) {
    EXPECT_EQ(split.first_part, next_first);
    next_first = split.last_part;
    for (std::int32_t part = split.first_part; part < split.last_part; ++part) {
      EXPECT_EQ(std::ranges::find(blocks, part, &KeyWork::part)->tile, split.tile);
    }
  }
  EXPECT_EQ(next_first, next_part);
}

/// All rows see the first tile.
TEST(AttentionVisits, StepsOfEarlyKeysAreCutIntoParts) {
  AttentionVisits visits;
  constexpr std::int64_t kGroup = 7;
  constexpr std::int64_t kKeyHeads = 4;
  visits.place(causal_layout(4096), kGroup, kKeyHeads);
  expect_all_steps(visits, kGroup);
  const std::int64_t steps = std::ssize(visits.strip_visits()) * kGroup * kKeyHeads;
  EXPECT_LE(visits.key_work().front().length(), divide_up(steps, AttentionVisits::kKeyBlocks));
  EXPECT_LE(std::ssize(visits.key_work()) * kKeyHeads, 2 * AttentionVisits::kKeyBlocks);
}

TEST(AttentionVisits, AreWhatTheLayoutSays) {
  AttentionVisits visits;
  for (unsigned seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    const PackedLayout layout =
        seed == 0 ? causal_layout(400) : random_layout(seed, 1 + 17 * static_cast<int>(seed));
    const std::int64_t group = 1 + seed % 7;
    visits.place(layout, group, 2);
    EXPECT_EQ(visits_of_queries(visits), visits_by_definition(layout, kVisitKeys));
    EXPECT_EQ(visits_of_keys(visits), visits_by_definition(layout, kKeyTileRows));
    expect_longest_first(visits.query_tiles());
    expect_longest_first(visits.key_work());
    expect_all_steps(visits, group);
    ASSERT_EQ(std::ssize(visits.rows()) % kQueryTileRows, 0);
    for (std::int64_t row = 0; row < std::ssize(visits.rows()); ++row) {
      for (std::int64_t key = 0; key < std::ssize(visits.rows()); ++key) {
        ASSERT_EQ(visits.rows()[static_cast<std::size_t>(row)].sees(static_cast<std::int32_t>(key)),
                  row < layout.num_rows && key < layout.num_rows && visible(layout, row, key))
            << row << " " << key;
      }
    }
  }
}

TEST(AttentionVisits, CausalRowsNeedOneMaskForAStrip) {
  AttentionVisits visits;
  visits.place(causal_layout(1024), 1, 1);
  EXPECT_EQ(visits.query_tiles().size(), 8U);
  EXPECT_EQ(visits.key_visits().size(), 4U * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8));
  EXPECT_EQ(std::ranges::count(visits.strip_visits(), 0, &StripVisit::complete), 1024 / 32);
}

/// Bits agree on all devices with at least an A100's shared memory.
TEST(LaneTiles, AreAsLargeAsADeviceHasRoomFor) {
  for (std::int64_t size = 2; size <= 256; size += 2) {
    for (std::int64_t group = 1; group <= kMostQueries; ++group) {
      const LaneTiles tiles =
          lane_tiles({.heads = group, .key_heads = 1, .size = size}, kMostSharedBytes);
      EXPECT_EQ(tiles.rows, rows_per_block(group)) << group << " heads of " << size;
      EXPECT_EQ(tiles.backward_keys, backward_tile_keys(size)) << group << " heads of " << size;
    }
  }
  constexpr std::int64_t kSmall = 99 << 10;  // sm_86 and sm_89
  const auto on_small = [](std::int64_t group, std::int64_t size) {
    const LaneTiles tiles = lane_tiles({.heads = group, .key_heads = 1, .size = size}, kSmall);
    return std::pair(tiles.rows, tiles.backward_keys);
  };
  EXPECT_EQ(on_small(7, 64), std::pair(rows_per_block(7), backward_tile_keys(64)));
  EXPECT_EQ(on_small(7, 128), std::pair(rows_per_block(7), backward_tile_keys(128) / 2));
  EXPECT_EQ(on_small(2, 256), std::pair(std::int64_t{8}, backward_tile_keys(256)));
}

TEST(SplitKeys, WhereADeviceWouldStandIdleOrWait) {
  const AttentionHeads heads{.heads = 28, .key_heads = 4, .size = 128};
  const auto splits = [&](std::int64_t tiles, std::int64_t longest, std::int64_t others) {
    const TileKeys keys{.tiles = tiles, .longest = longest, .all = longest + (tiles - 1) * others};
    return splits_keys(keys, heads, (keys.all + kSplitKeys - 1) / kSplitKeys);
  };
  EXPECT_TRUE(splits(1, 4096, 0)) << "32 blocks for 28 heads";
  EXPECT_TRUE(splits(65, 500, 500));
  EXPECT_FALSE(splits(66, 500, 500)) << "two blocks for each multiprocessor";
  EXPECT_TRUE(splits(70, 16'000, 500)) << "the longest would be waited for";
  EXPECT_FALSE(splits(70, 900, 500));
  EXPECT_TRUE(splits(10, 32'768, 32'768));
  EXPECT_TRUE(splits(36, 32'768, 32'768));
  EXPECT_FALSE(splits(37, 32'768, 32'768)) << "no room for the parts";
  EXPECT_FALSE(splits_keys({.tiles = 3, .longest = 100, .all = 300}, heads, 0))
      << "nothing to split";
}

}  // namespace
}  // namespace jforge::test
