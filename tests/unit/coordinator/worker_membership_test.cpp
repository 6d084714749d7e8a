#include "coordinator/worker_membership.h"

#include <gtest/gtest.h>

namespace jforge {
namespace {

TEST(WorkerMembership, ASilentRankIsLostAfterTheLimit) {
  WorkerMembership membership(3, 10, 100);
  EXPECT_FALSE(membership.lost(110));
  Heartbeat beat;
  membership.heard(0, beat, 109);
  membership.heard(2, beat, 109);
  EXPECT_FALSE(membership.lost(110));
  EXPECT_EQ(membership.lost(110.5), 1);
  membership.heard(1, beat, 111);
  EXPECT_FALSE(membership.lost(112));
}

TEST(WorkerMembership, ProgressIsSeenOncePerChange) {
  WorkerMembership membership(1, 10, 0);
  Heartbeat beat;
  beat.progress = 5;
  membership.heard(0, beat, 1);
  EXPECT_TRUE(membership.progressed(0));
  EXPECT_FALSE(membership.progressed(0));
  beat.progress = 6;
  membership.heard(0, beat, 2);
  EXPECT_TRUE(membership.progressed(0));
}

TEST(WorkerMembership, SumsWhatTheRanksHaveDone) {
  WorkerMembership membership(3, 10, 0);
  EXPECT_EQ(membership.progress(), 0U);
  Heartbeat beat;
  beat.progress = 5;
  beat.tokens = 64;
  beat.forwards = 20;
  membership.heard(0, beat, 1);
  membership.heard(2, beat, 1);
  EXPECT_EQ(membership.progress(), 10U);
  beat.progress = 3;
  membership.heard(2, beat, 2);
  EXPECT_EQ(membership.progress(), 8U) << "a rank's last heartbeat counts, also a smaller one";
  EXPECT_EQ(membership.made(), (std::pair<std::int64_t, std::int64_t>{128, 40}));
}

TEST(WorkerMembership, TheTableNamesHostPhaseAndStep) {
  WorkerMembership membership(2, 10, 0);
  membership.heard(1, Heartbeat{"train round 1", 42, 7, 3.5, true, 0, 0, "node7", 4711}, 1);
  const std::string table = membership.table(5);
  EXPECT_NE(table.find("node7"), std::string::npos);
  EXPECT_NE(table.find("train round 1"), std::string::npos);
  EXPECT_NE(table.find("42"), std::string::npos);
  EXPECT_NE(table.find("4711"), std::string::npos);
  EXPECT_NE(table.find("waits"), std::string::npos);
}

}  // namespace
}  // namespace jforge
