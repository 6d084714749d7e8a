#include "workers/evaluate/work_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "runtime/error.h"

namespace jforge {
namespace {

using ::testing::ElementsAre;

std::vector<std::int64_t> sizes(WorkCounter counter) {
  std::vector<std::int64_t> sizes;
  std::int64_t next = 0;
  for (WorkLease lease = counter.grant(); lease.begin != lease.end; lease = counter.grant()) {
    EXPECT_EQ(lease.begin, next) << "a number is left out or given twice";
    next = lease.end;
    sizes.push_back(lease.end - lease.begin);
  }
  return sizes;
}

TEST(WorkCounter, GivesEveryNumberOnceInSharesThatShrink) {
  for (const std::int64_t total : {0, 1, 7, 100, 12345}) {
    for (const int ranks : {1, 3, 64}) {
      for (const std::int64_t most : {1, 8, 1000}) {
        const std::vector<std::int64_t> given = sizes(WorkCounter({total}, ranks, most));
        std::int64_t sum = 0;
        for (const std::int64_t size : given) {
          EXPECT_LE(size, most);
          sum += size;
        }
        EXPECT_EQ(sum, total);
        EXPECT_TRUE(std::ranges::is_sorted(given, std::greater<>()));
        if (total > 0) {
          EXPECT_EQ(given.back(), 1);
        }
      }
    }
  }
  EXPECT_THAT(sizes(WorkCounter({32}, 2, 3)),
              ElementsAre(3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1));
}

TEST(WorkCounter, SharesShrinkTowardsTheEndOfEveryGroup) {
  // Groups 0–7, none, and 8–16: no lease spans two.
  EXPECT_THAT(sizes(WorkCounter({8, 8, 17}, 1, 3)),
              ElementsAre(2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(sizes(WorkCounter({}, 1, 3)), ElementsAre());
  EXPECT_THROW(WorkCounter({5, 4}, 1, 3), InternalError);
}

TEST(WorkCounter, AStopGivesNothingMore) {
  WorkCounter counter({10}, 2, 4);
  (void)counter.grant();
  counter.stop();
  const WorkLease lease = counter.grant();
  EXPECT_EQ(lease.begin, lease.end);
  EXPECT_TRUE(counter.stopped());
}

TEST(WorkCounter, KnowsWhenAllHaveLeft) {
  WorkCounter counter({10}, 2, 4);
  counter.add_finished(3);
  counter.add_finished(2);
  EXPECT_EQ(counter.finished(), 5);
  counter.leave();
  EXPECT_FALSE(counter.all_left());
  counter.leave();
  EXPECT_TRUE(counter.all_left());
  EXPECT_THROW(WorkCounter({1}, 1, 0), InternalError);
  EXPECT_THROW(WorkCounter({-1}, 1, 1), InternalError);
}

}  // namespace
}  // namespace jforge
