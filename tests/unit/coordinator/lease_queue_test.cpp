#include "coordinator/lease_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
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
  LeaseQueue queue({{0, 5}, {1, 9}, {2, 5}, {3, 1}, {4, 9}}, {.most = 2, .first = 2}, 7);
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
  LeaseQueue queue({{0, 1}}, {}, 0);
  const auto first = queue.grant(0, 0, 10);
  EXPECT_EQ(queue.expire(9.9), 0U);
  EXPECT_EQ(queue.expire(10), 1U);
  const auto second = queue.grant(1, 10, 10);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(second->attempt, 1);
  EXPECT_EQ(queue.request_commit(*second), *second);
  EXPECT_TRUE(queue.request_commit(*first).prompts.empty()) << "the slow first attempt loses";
  EXPECT_FALSE(queue.drained());
  queue.committed(0, 1, 12);
  EXPECT_TRUE(queue.drained());
  EXPECT_TRUE(queue.request_commit(*first).prompts.empty());
  EXPECT_EQ(queue.prompts_committed(), 1);
}

TEST(LeaseQueue, AnExpiredAttemptMayStillCommitFirst) {
  LeaseQueue queue({{0, 1}}, {}, 0);
  ASSERT_TRUE(queue.grant(0, 0, 10));
  EXPECT_EQ(queue.expire(11), 1U);
  EXPECT_EQ(queue.request_commit({0, 0, {0}}).prompts.size(), 1U);
  EXPECT_FALSE(queue.grant(1, 12, 10)) << "granted for commit: no longer free";
  queue.committed(0, 0, 12);
  EXPECT_TRUE(queue.drained());
}

TEST(LeaseQueue, EveryFinishedPromptOfALeaseIsGrantedToOneAttempt) {
  LeaseQueue queue({{1, 9}, {2, 8}, {3, 7}, {4, 6}, {5, 2}, {6, 1}}, {.most = 3}, 7);
  const auto first = queue.grant(0, 0, 10);
  ASSERT_TRUE(first);
  ASSERT_EQ(first->prompts, (std::vector<PromptId>{1, 2, 3}));
  ASSERT_EQ(queue.grant(1, 0, 100)->prompts, (std::vector<PromptId>{4, 5}));
  EXPECT_EQ(queue.expire(11), 1U);
  ASSERT_EQ(queue.grant(2, 11, 100)->id, first->id);
  EXPECT_TRUE(queue.request_commit({7, 0, {}}).prompts.empty());
  EXPECT_EQ(queue.request_commit({7, 0, {2}}), (Lease{9, 0, {2}}));
  EXPECT_EQ(queue.request_commit({7, 1, {2, 3}}), (Lease{10, 1, {3}}));
  EXPECT_TRUE(queue.request_commit({7, 1, {2, 3}}).prompts.empty());
  queue.committed(10, 1, 12);
  queue.committed(9, 0, 13);
  EXPECT_EQ(queue.prompts_committed(), 2);
  EXPECT_EQ(queue.expire(115), 2U);
  EXPECT_EQ(queue.grant(3, 115, 100)->prompts.size() + queue.grant(3, 115, 100)->prompts.size(), 3U)
      << "only what is left is leased again";
  EXPECT_EQ(queue.request_commit({8, 0, {4, 5}}), (Lease{8, 0, {4, 5}}))
      << "a whole one keeps its id";
  queue.committed(8, 0, 14);
  EXPECT_EQ(queue.request_commit(*first), (Lease{7, 0, {1}})) << "what is left of it";
  queue.committed(7, 0, 15);
  EXPECT_TRUE(queue.request_commit({7, 1, {1}}).prompts.empty());
  EXPECT_EQ(queue.prompts_committed(), 5);
  EXPECT_FALSE(queue.drained());
}

TEST(LeaseQueue, ProgressExtendsALease) {
  LeaseQueue queue({{0, 1}}, {}, 0);
  ASSERT_TRUE(queue.grant(3, 0, 10));
  queue.extend(3, 8, 10);
  EXPECT_EQ(queue.expire(17), 0U);
  EXPECT_EQ(queue.expire(18), 1U);
}

/// Returns the number of prompts of a lease that takes `seconds`.
std::size_t work(LeaseQueue& queue, Rank rank, double now, double seconds) {
  const auto lease = queue.grant(rank, now, 1000);
  EXPECT_TRUE(lease.has_value());
  EXPECT_EQ(queue.request_commit(*lease), *lease);
  queue.committed(lease->id, lease->attempt, now + seconds);
  return lease->prompts.size();
}

TEST(LeaseQueue, LeasesBecomeSmallerTowardsTheEnd) {
  LeaseQueue queue(prompts(1000), {.most = 100, .first = 8, .ranks = 2, .seconds = 1e6}, 0);
  std::vector<std::size_t> sizes;
  std::size_t left = 1000;
  for (double now = 0; left > 0; now += 1) {
    const std::size_t size = work(queue, static_cast<Rank>(sizes.size() % 2), now, 1);
    EXPECT_LE(size, std::max<std::size_t>(1, (left + 1) / 2)) << "the other rank has work, too";
    left -= size;
    sizes.push_back(size);
  }
  EXPECT_EQ(sizes[0], 8U) << "nothing is known of the ranks";
  EXPECT_EQ(sizes[1], 8U);
  EXPECT_EQ(sizes[2], 100U) << "half a share is more than the most";
  EXPECT_EQ(sizes.back(), 1U);
  EXPECT_TRUE(queue.drained());
}

TEST(LeaseQueue, ASlowRankGetsSmallerLeases) {
  LeaseQueue queue(prompts(42'000), {.most = 20'000, .first = 1'000, .ranks = 2, .seconds = 1e6},
                   0);
  EXPECT_EQ(work(queue, 0, 0, 10), 1'000U);
  EXPECT_EQ(work(queue, 1, 0, 30), 1'000U);
  // Three quarters of the remaining 40,000 and half of that; then a quarter of 25,000.
  EXPECT_EQ(queue.grant(0, 30, 1000)->prompts.size(), 15'000U);
  EXPECT_EQ(queue.grant(1, 30, 1000)->prompts.size(), 3'125U);
}

TEST(LeaseQueue, ALeaseIsNoMoreThanAMinutesWork) {
  LeaseQueue queue(prompts(100'000), {.most = 10'000, .ranks = 1, .seconds = 60}, 0);
  EXPECT_EQ(work(queue, 0, 0, 4), 8U);
  EXPECT_EQ(queue.grant(0, 4, 1000)->prompts.size(), 120U);
}

TEST(LeaseQueue, ALateLeaseGetsABackupAndTheFirstCommits) {
  LeaseQueue queue(prompts(4), {.most = 1, .ranks = 3}, 0);
  const auto late = queue.grant(0, 0, 1000);
  ASSERT_TRUE(late);
  EXPECT_FALSE(queue.repeats());
  for (const double now : {0.0, 1.0, 2.0}) {
    work(queue, 1, now, 1);
  }
  // Late after two seconds. The holder gets no copy.
  EXPECT_FALSE(queue.grant(1, 2, 1000));
  EXPECT_FALSE(queue.grant(0, 50, 1000));
  const auto backup = queue.grant(1, 2.1, 1000);
  ASSERT_TRUE(backup);
  EXPECT_EQ(backup->id, late->id);
  EXPECT_EQ(backup->attempt, 1);
  EXPECT_EQ(backup->prompts, late->prompts);
  EXPECT_EQ(queue.repeats(), 1);
  EXPECT_FALSE(queue.grant(2, 60, 1000)) << "one backup is enough";
  // The backup's deadline applies.
  EXPECT_EQ(queue.expire(1001), 0U);
  EXPECT_EQ(queue.request_commit(*late), *late) << "the first attempt was faster after all";
  queue.committed(late->id, 0, 100);
  EXPECT_TRUE(queue.request_commit(*backup).prompts.empty());
  EXPECT_TRUE(queue.drained());
  EXPECT_EQ(queue.expire(2000), 0U);
  EXPECT_EQ(queue.prompts_committed(), 4);
}

TEST(LeaseQueue, UnknownLeasesAreRefused) {
  LeaseQueue queue({{0, 1}}, {}, 5);
  EXPECT_THROW((void)queue.request_commit({5, 0, {0}}), CommError) << "not given out yet";
  ASSERT_TRUE(queue.grant(0, 0, 10));
  EXPECT_THROW((void)queue.request_commit({4, 0, {0}}), CommError);
  EXPECT_THROW((void)queue.request_commit({6, 0, {0}}), CommError);
  EXPECT_THROW(queue.committed(5, 0, 1), InternalError) << "nobody was granted";
}

TEST(LeaseQueue, ThousandsOfUnreliableWorkers) {
  constexpr std::int64_t kPrompts = 50'000;
  constexpr Rank kWorkers = 3'000;
  LeaseQueue queue(prompts(kPrompts), {.most = 7, .first = 7, .ranks = kWorkers}, 0);
  RandomStream random(2, RandomPurpose::test);
  std::map<PromptId, int> commits;
  std::multimap<double, std::pair<Rank, Lease>> running;
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
      if (!queue.request_commit(lease).prompts.empty()) {
        queue.committed(lease.id, lease.attempt, now);
        for (const PromptId id : lease.prompts) {
          ++commits[id];
        }
      }
    }
    // A new worker replaces a dead one.
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
