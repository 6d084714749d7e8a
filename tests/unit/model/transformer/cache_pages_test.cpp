/// Pages of the key/value cache: none is lost, shared by two slots or promised twice.

#include "model/transformer/cache_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "runtime/error.h"
#include "runtime/random.h"
#include "tests/support/kernel_calls.h"

namespace jforge {
namespace {

TEST(CachePages, CountsOfRows) {
  EXPECT_EQ(cache_pages(0), 0);
  EXPECT_EQ(cache_pages(1), 1);
  EXPECT_EQ(cache_pages(64), 1);
  EXPECT_EQ(cache_pages(65), 2);
  EXPECT_EQ(cache_pages(65, 0), 2);
  EXPECT_EQ(cache_pages(65, 1), 3) << "alternatives begin with a page of their own";
}

TEST(CachePages, ABatchTakesWhatItsLargestSequencesTake) {
  BatchPages batch(3);
  std::vector<std::int64_t> added;
  RandomStream random(1, RandomPurpose::test, 44);
  for (int i = 0; i < 50; ++i) {
    added.push_back(1 + static_cast<std::int64_t>(random.below(20)));
    batch.add(added.back());
    std::ranges::sort(added, std::greater{});
    EXPECT_EQ(batch.largest(), added[0]);
    EXPECT_EQ(batch.most(),
              std::accumulate(added.begin(), added.begin() + std::min(i + 1, 3), std::int64_t{0}));
  }
}

TEST(CachePages, WhatIsPromisedIsKept) {
  CachePages pages(5, 3, 4);
  EXPECT_TRUE(pages.reserve(0, 3));
  EXPECT_EQ(pages.free_pages(), 2);
  EXPECT_FALSE(pages.reserve(1, 3)) << "two are left";
  EXPECT_TRUE(pages.reserve(1, 2));
  EXPECT_EQ(pages.free_pages(), 0);
  EXPECT_THROW(pages.provide(2, 0), InternalError) << "those left are others'";
  for (const std::int64_t index : {3, 0, 1}) {
    pages.provide(0, index);
    pages.provide(0, index);
  }
  EXPECT_THROW(pages.provide(0, 2), InternalError) << "more than it reserved";
  EXPECT_EQ(pages.table().slot(0)[2], -1);
  pages.provide(1, 0);
  EXPECT_EQ(pages.free_pages(), 0);
  EXPECT_FALSE(pages.reserve(1, 3)) << "its own two are not enough";
  EXPECT_EQ(pages.free_pages(), 2) << "and it has none of them any more";
  pages.release(0);
  EXPECT_EQ(pages.free_pages(), 5);
  EXPECT_EQ(std::ranges::count(pages.table().pages, -1), 12);
  EXPECT_TRUE(pages.reserve(1, 4));
  pages.provide(2, 1);  // without a reservation, a slot takes free pages
  EXPECT_THROW(pages.provide(2, 0), InternalError);
  EXPECT_THROW((void)pages.reserve(0, 5), InternalError) << "more than a slot has room for";
  EXPECT_THROW(CachePages(0, 1, 1), InternalError);
}

struct Sequence {
  std::int64_t promised = 0;  ///< −1: no reservation
  std::set<std::int64_t> given;
};

TEST(CachePages, RandomOrdersLoseNoneAndGiveNoneTwice) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    RandomStream random(seed, RandomPurpose::test, 41);
    const auto below = [&](std::int64_t end) {
      return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(end)));
    };
    const std::int64_t slots = 1 + below(6);
    const std::int64_t slot_pages = 1 + below(9);
    const std::int64_t all = slot_pages + below(slots * slot_pages);
    CachePages pages(all, slots, slot_pages);
    std::vector<Sequence> known(static_cast<std::size_t>(slots), Sequence{-1, {}});
    for (int turn = 0; turn < 500; ++turn) {
      const std::int64_t slot = below(slots);
      Sequence& sequence = known[static_cast<std::size_t>(slot)];
      const std::int64_t free_before = pages.free_pages();
      const std::int64_t own =
          std::max(sequence.promised, static_cast<std::int64_t>(sequence.given.size()));
      switch (below(5)) {
        case 0: {
          const std::int64_t count = 1 + below(slot_pages);
          const bool fits = count <= free_before + own;
          ASSERT_EQ(pages.reserve(slot, count), fits);
          sequence = {fits ? count : -1, {}};
          break;
        }
        case 1:
          pages.release(slot);
          sequence = {-1, {}};
          break;
        default: {
          const std::int64_t index = below(slot_pages);
          const auto given = static_cast<std::int64_t>(sequence.given.size());
          const bool possible =
              sequence.given.contains(index) ||
              (sequence.promised < 0 ? free_before > 0 : given < sequence.promised);
          if (possible) {
            pages.provide(slot, index);
            sequence.given.insert(index);
          } else {
            ASSERT_THROW(pages.provide(slot, index), InternalError);
          }
        }
      }
      std::int64_t taken = 0;
      std::set<std::int32_t> seen;
      for (std::int64_t s = 0; s < slots; ++s) {
        const Sequence& each = known[static_cast<std::size_t>(s)];
        taken += std::max(each.promised, static_cast<std::int64_t>(each.given.size()));
        for (std::int64_t index = 0; index < slot_pages; ++index) {
          const std::int32_t page = pages.table().slot(s)[index];
          ASSERT_EQ(page >= 0, each.given.contains(index));
          if (page >= 0) {
            ASSERT_LT(page, all);
            ASSERT_TRUE(seen.insert(page).second) << "page " << page << " is two slots'";
          }
        }
      }
      ASSERT_EQ(pages.free_pages(), all - taken);
    }
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      pages.release(slot);
    }
    EXPECT_EQ(pages.free_pages(), all);
  }
}

/// A sequence of known attention, with a branch at its end.
struct Text {
  static constexpr std::int64_t kHeads = 4;
  static constexpr std::int64_t kKeyHeads = 2;
  static constexpr std::int64_t kDim = 16;

  Text(KernelSet& kernels, std::int64_t length, RandomStream& random) : rows(length) {
    for (std::vector<float>* values : {&q, &k, &v}) {
      values->resize(static_cast<std::size_t>(length * (values == &q ? kHeads : kKeyHeads) * kDim));
      for (float& value : *values) {
        value = static_cast<float>(random.normal());
      }
    }
    expected.resize(q.size());
    std::vector<float> sums(static_cast<std::size_t>(length * kHeads));
    test::packed_attention(kernels, queries(0, length), keys(0, length), vals(0, length),
                           test::causal_layout(length),
                           TensorView(expected.data(), {length, kHeads, kDim}),
                           TensorView(sums.data(), {length, kHeads}));
  }
  [[nodiscard]] ConstTensorView queries(std::int64_t begin, std::int64_t end) const {
    return {q.data() + begin * kHeads * kDim, Shape{end - begin, kHeads, kDim}};
  }
  [[nodiscard]] ConstTensorView keys(std::int64_t begin, std::int64_t end) const {
    return {k.data() + begin * kKeyHeads * kDim, Shape{end - begin, kKeyHeads, kDim}};
  }
  [[nodiscard]] ConstTensorView vals(std::int64_t begin, std::int64_t end) const {
    return {v.data() + begin * kKeyHeads * kDim, Shape{end - begin, kKeyHeads, kDim}};
  }

  std::int64_t rows;
  std::int64_t done = 0;
  std::vector<float> q, k, v, expected;
};

/// In chunks, or as a branch that is then copied. Free pages hold NaN.
TEST(CachePages, AttentionOverPagesThatComeAndGoHasTheBitsOfPackedAttention) {
  constexpr std::int64_t kSlots = 4;
  constexpr std::int64_t kSequenceRows = 256;  // rows of a sequence, before its branches
  constexpr std::int64_t kBranch = 80;
  constexpr std::int64_t kSlotPages = cache_pages(kSequenceRows, kBranch);
  constexpr std::int64_t kPages = 11;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const auto kernels = make_cpu_kernel_set();
  RandomStream random(6, RandomPurpose::test, 42);
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(end)));
  };
  CachePages pages(kPages, kSlots, kSlotPages);
  const Shape shape{kPages, kCachePageRows, Text::kKeyHeads, Text::kDim};
  const std::int64_t page_floats = shape.elements() / kPages;
  std::vector<float> keys(static_cast<std::size_t>(shape.elements()), kNaN);
  std::vector<float> values(keys);
  const test::PagedCache cache{TensorView(keys.data(), shape), TensorView(values.data(), shape),
                               pages.table()};
  std::vector<std::unique_ptr<Text>> texts(kSlots);
  int finished = 0;
  int refused = 0;
  int branched = 0;
  for (int turn = 0; turn < 900; ++turn) {
    const std::int64_t slot = below(kSlots);
    std::unique_ptr<Text>& text = texts[static_cast<std::size_t>(slot)];
    if (!text) {
      const std::int64_t length = 1 + below(kSequenceRows);
      if (!pages.reserve(slot, cache_pages(length, kBranch))) {
        ++refused;
        continue;
      }
      text = std::make_unique<Text>(*kernels, length, random);
    }
    const std::int64_t begin = text->done;
    const bool alternative = below(3) == 0;
    const std::int64_t most = alternative ? kBranch : kSequenceRows;
    const std::int64_t end = begin + 1 + below(std::min(most, text->rows - begin));
    const std::int64_t first_row =
        alternative ? kSequenceRows + below(kBranch - (end - begin) + 1) : 0;
    std::vector<CacheRow> rows;
    std::vector<CacheCopy> copies;
    for (std::int64_t position = begin; position < end; ++position) {
      rows.push_back({.slot = static_cast<std::int32_t>(slot),
                      .position = static_cast<std::int32_t>(position),
                      .fork = static_cast<std::int32_t>(alternative ? begin : 0),
                      .fork_row = static_cast<std::int32_t>(first_row)});
      copies.push_back({static_cast<std::int32_t>(slot),
                        static_cast<std::int32_t>(rows.back().row()),
                        static_cast<std::int32_t>(position)});
      pages.provide(slot, rows.back().row() / kCachePageRows);
    }
    test::cache_write(*kernels, rows, text->keys(begin, end), text->vals(begin, end), cache);
    std::vector<float> output(static_cast<std::size_t>((end - begin) * Text::kHeads * Text::kDim));
    test::cached_attention(*kernels, rows, text->queries(begin, end), cache,
                           TensorView(output.data(), {end - begin, Text::kHeads, Text::kDim}));
    ASSERT_EQ(std::memcmp(output.data(), text->expected.data() + begin * Text::kHeads * Text::kDim,
                          output.size() * sizeof(float)),
              0)
        << "turn " << turn << ", rows " << begin << " to " << end;
    if (alternative) {
      ++branched;
      for (const CacheCopy& copy : copies) {
        pages.provide(slot, copy.to / kCachePageRows);
      }
      test::cache_copy(*kernels, copies, cache);
    }
    text->done = end;
    if (text->done == text->rows || below(10) == 0) {  // at its end, or dropped in the middle
      pages.release(slot);
      text.reset();
      ++finished;
    }
    for (std::int64_t page = 0; page < kPages; ++page) {
      if (std::ranges::find(pages.table().pages, page) == pages.table().pages.end()) {
        std::fill_n(keys.begin() + page * page_floats, page_floats, kNaN);
        std::fill_n(values.begin() + page * page_floats, page_floats, kNaN);
      }
    }
  }
  EXPECT_GT(finished, 100);
  EXPECT_GT(refused, 20);
  EXPECT_GT(branched, 50);
}

}  // namespace
}  // namespace jforge
