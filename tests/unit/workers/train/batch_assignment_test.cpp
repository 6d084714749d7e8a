#include "workers/train/batch_assignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "runtime/random.h"

namespace jforge {
namespace {

std::vector<std::int64_t> random_lengths(std::size_t count, std::uint64_t seed) {
  RandomStream random(seed, RandomPurpose::test);
  std::vector<std::int64_t> lengths(count);
  for (std::int64_t& length : lengths) {
    length = 1 + static_cast<std::int64_t>(random.below(900));
  }
  return lengths;
}

std::int64_t total(const std::vector<std::size_t>& members,
                   const std::vector<std::int64_t>& lengths) {
  std::int64_t sum = 0;
  for (const std::size_t member : members) {
    sum += lengths[member];
  }
  return sum;
}

using Lists = std::vector<std::vector<std::size_t>>;

Lists assign_to_ranks(const std::vector<std::int64_t>& lengths, int ranks) {
  BatchDivision division;
  division.assign_to_ranks(lengths, ranks);
  return {division.lists().begin(), division.lists().end()};
}

Lists cut_micro_batches(const std::vector<std::size_t>& members,
                        const std::vector<std::int64_t>& lengths, std::int64_t limit) {
  BatchDivision division;
  division.cut_micro_batches(members, lengths, limit);
  return {division.lists().begin(), division.lists().end()};
}

std::vector<std::size_t> sorted_union(const std::vector<std::vector<std::size_t>>& lists) {
  std::vector<std::size_t> all;
  for (const auto& list : lists) {
    all.insert(all.end(), list.begin(), list.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

TEST(AssignToRanks, TheSetIsTheSameAtAnyWorldSize) {
  const auto lengths = random_lengths(64, 1);
  std::vector<std::size_t> everything(lengths.size());
  std::iota(everything.begin(), everything.end(), std::size_t{0});
  for (int ranks = 1; ranks <= 9; ++ranks) {
    const auto assigned = assign_to_ranks(lengths, ranks);
    ASSERT_EQ(assigned.size(), static_cast<std::size_t>(ranks));
    EXPECT_EQ(sorted_union(assigned), everything);
  }
}

TEST(AssignToRanks, LoadsDifferByLessThanTheLongestSample) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto lengths = random_lengths(40, seed);
    const auto assigned = assign_to_ranks(lengths, 4);
    std::vector<std::int64_t> loads;
    for (const auto& members : assigned) {
      loads.push_back(total(members, lengths));
    }
    const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
    EXPECT_LE(*most - *least, *std::max_element(lengths.begin(), lengths.end()));
  }
}

TEST(AssignToRanks, EveryRankGetsOneWhenThereAreEnough) {
  const std::vector<std::int64_t> lengths = {1000, 1, 1, 1};
  for (const auto& members : assign_to_ranks(lengths, 4)) {
    EXPECT_EQ(members.size(), 1U);
  }
  const auto idle = assign_to_ranks(lengths, 6);
  EXPECT_EQ(std::count_if(idle.begin(), idle.end(), [](const auto& m) { return m.empty(); }), 2);
}

TEST(CutMicroBatches, RespectsTheLimitAndLosesNothing) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto lengths = random_lengths(50, seed);
    const auto mine = assign_to_ranks(lengths, 3)[1];
    const auto micro_batches = cut_micro_batches(mine, lengths, 1000);
    EXPECT_EQ(sorted_union(micro_batches), mine);
    for (const auto& members : micro_batches) {
      EXPECT_FALSE(members.empty());
      EXPECT_LE(total(members, lengths), 1000);
    }
    const auto half_empty =
        std::count_if(micro_batches.begin(), micro_batches.end(),
                      [&](const auto& members) { return total(members, lengths) * 2 <= 1000; });
    EXPECT_LE(half_empty, 1);
  }
}

TEST(CutMicroBatches, NoMembersNoBatches) {
  EXPECT_TRUE(cut_micro_batches({}, std::vector<std::int64_t>{5}, 10).empty());
}

TEST(BatchDivision, ReuseLeavesNothingOfAnEarlierBatch) {
  BatchDivision division;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const auto lengths = random_lengths(60 - 5 * seed, seed);
    const int ranks = 1 + static_cast<int>(seed * 5 % 7);
    division.assign_to_ranks(lengths, ranks);
    EXPECT_EQ(Lists(division.lists().begin(), division.lists().end()),
              assign_to_ranks(lengths, ranks));
    const std::vector<std::size_t> members = division.lists()[0];
    division.cut_micro_batches(members, lengths, 1000);
    EXPECT_EQ(Lists(division.lists().begin(), division.lists().end()),
              cut_micro_batches(members, lengths, 1000));
  }
}

}  // namespace
}  // namespace jforge
