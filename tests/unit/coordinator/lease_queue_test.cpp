#include "coordinator/lease_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "runtime/error.h"
#include "runtime/random.h"

namespace jforge {
namespace {

std::vector<PendingPrompt> prompts(std::int64_t count) {
  std::vector<PendingPrompt> pending;
  RandomStream random(1, RandomPurpose::test);
  for (PromptId id = 0; id < count; ++id) {
    pending.push_back({id, static_cast<std::int64_t>(random.below(200))});
  }
  return pending;
}

TEST(LeaseQueue, EveryPromptIsLeasedOnceAndLongestFirst) {
  LeaseQueue queue({{0, 5}, {1, 9}, {2, 5}, {3, 1}, {4, 9}}, 2, 7);
  const auto first = queue.grant(0, 0, 10);
  const auto second = queue.grant(1, 0, 10);
  const auto third = queue.grant(0, 0, 10);
  ASSERT_TRUE(first && second && third);
  EXPECT_EQ(*first, (Lease{7, 0, {1, 4}}));
  EXPECT_EQ(*second, (Lease{8, 0, {0, 2}}));
  EXPECT_EQ(*third, (Lease{9, 0, {3}}));
  EXPECT_FALSE(queue.grant(0, 0, 10));
  EXPECT_FALSE(queue.drained());
}

TEST(LeaseQueue, AnExpiredLeaseIsGivenAgainAndOnlyOneAttemptCommits) {
  LeaseQueue queue({{0, 1}}, 1, 0);
  const auto first = queue.grant(0, 0, 10);
  EXPECT_EQ(queue.expire(9.9), 0U);
  EXPECT_EQ(queue.expire(10), 1U);
  const auto second = queue.grant(1, 10, 10);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(second->attempt, 1);
  EXPECT_TRUE(queue.request_commit(0, 1));
  EXPECT_TRUE(queue.request_commit(0, 1)) << "asking twice gives the same answer";
  EXPECT_FALSE(queue.request_commit(0, 0)) << "the slow first attempt loses";
  EXPECT_FALSE(queue.drained());
  queue.committed(0, 1);
  EXPECT_TRUE(queue.drained());
  EXPECT_FALSE(queue.request_commit(0, 0));
  EXPECT_EQ(queue.prompts_committed(), 1);
}

TEST(LeaseQueue, AnExpiredAttemptMayStillCommitFirst) {
  LeaseQueue queue({{0, 1}}, 1, 0);
  ASSERT_TRUE(queue.grant(0, 0, 10));
  EXPECT_EQ(queue.expire(11), 1U);
  EXPECT_TRUE(queue.request_commit(0, 0));
  EXPECT_FALSE(queue.grant(1, 12, 10)) << "granted for commit: no longer free";
  queue.committed(0, 0);
  EXPECT_TRUE(queue.drained());
}

TEST(LeaseQueue, ProgressExtendsALease) {
  LeaseQueue queue({{0, 1}}, 1, 0);
  ASSERT_TRUE(queue.grant(3, 0, 10));
  queue.extend(3, 8, 10);
  EXPECT_EQ(queue.expire(17), 0U);
  EXPECT_EQ(queue.expire(18), 1U);
}

TEST(LeaseQueue, UnknownLeasesAreRefused) {
  LeaseQueue queue({{0, 1}}, 1, 5);
  EXPECT_THROW((void)queue.request_commit(4, 0), CommError);
  EXPECT_THROW((void)queue.request_commit(6, 0), CommError);
  EXPECT_THROW(queue.committed(5, 0), InternalError) << "nobody was granted";
}

// Thousands of workers that are slow, die and come back: every prompt is committed exactly once.
TEST(LeaseQueue, ThousandsOfUnreliableWorkers) {
  constexpr std::int64_t kPrompts = 50'000;
  constexpr Rank kWorkers = 3'000;
  LeaseQueue queue(prompts(kPrompts), 7, 0);
  RandomStream random(2, RandomPurpose::test);
  std::map<PromptId, int> commits;
  std::multimap<double, std::pair<Rank, Lease>> running;  // by finishing time
  std::set<Rank> idle;
  for (Rank rank = 0; rank < kWorkers; ++rank) {
    idle.insert(rank);
  }
  double now = 0;
  while (!queue.drained()) {
    for (auto it = idle.begin(); it != idle.end();) {
      auto lease = queue.grant(*it, now, 20);
      if (!lease) {
        break;
      }
      const bool dies = random.below(20) == 0;
      const double duration = random.below(10) == 0 ? 60 : 1 + 10 * random.uniform();
      running.emplace(now + (dies ? 1e9 : duration), std::pair{*it, *lease});
      it = idle.erase(it);
    }
    now += 1;
    queue.expire(now);
    while (!running.empty() && running.begin()->first <= now) {
      const auto [rank, lease] = running.begin()->second;
      running.erase(running.begin());
      idle.insert(rank);
      if (queue.request_commit(lease.id, lease.attempt)) {
        queue.committed(lease.id, lease.attempt);
        for (const PromptId id : lease.prompts) {
          ++commits[id];
        }
      }
    }
    // A dead worker's place is taken by a new one, as after a relaunch.
    if (idle.empty() && (running.empty() || running.begin()->first > 1e8)) {
      idle.insert(0);
    }
    ASSERT_LT(now, 1e6);
  }
  ASSERT_EQ(commits.size(), static_cast<std::size_t>(kPrompts));
  for (const auto& [id, count] : commits) {
    ASSERT_EQ(count, 1) << "prompt " << id;
  }
  EXPECT_EQ(queue.prompts_committed(), kPrompts);
}

}  // namespace
}  // namespace jforge
