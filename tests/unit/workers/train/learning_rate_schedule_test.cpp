#include "workers/train/learning_rate_schedule.h"

#include <gtest/gtest.h>

namespace jforge {
namespace {

TEST(LearningRateSchedule, WarmsUpLinearlyAndReachesThePeak) {
  const LearningRateSchedule schedule{1.0, 100, 0.1, 0.0};
  EXPECT_EQ(schedule.warmup_steps(), 10);
  for (int step = 1; step <= 10; ++step) {
    EXPECT_NEAR(schedule.at(step), step / 10.0, 1e-12) << step;
  }
}

TEST(LearningRateSchedule, NoStepHasRateZero) {
  for (const double warmup : {0.0, 0.03, 0.5, 1.0}) {
    const LearningRateSchedule schedule{1e-3, 37, warmup, 0.0};
    for (int step = 1; step <= 37; ++step) {
      EXPECT_GT(schedule.at(step), 0.0) << "warm-up " << warmup << ", step " << step;
      EXPECT_LE(schedule.at(step), 1e-3);
    }
  }
}

TEST(LearningRateSchedule, DecaysMonotonicallyAlongTheCosine) {
  const LearningRateSchedule schedule{2.0, 99, 0.0, 0.0};
  for (int step = 2; step <= 99; ++step) {
    EXPECT_LT(schedule.at(step), schedule.at(step - 1));
  }
  EXPECT_NEAR(schedule.at(50), 1.0, 1e-12);
}

TEST(LearningRateSchedule, EndsAtTheMinimumRatio) {
  const LearningRateSchedule schedule{1.0, 1000, 0.03, 0.1};
  EXPECT_NEAR(schedule.at(1000), 0.1, 1e-4);
  EXPECT_DOUBLE_EQ(schedule.at(1001), 0.1);
  EXPECT_GE(schedule.at(1000), 0.1);
}

TEST(LearningRateSchedule, RatioTimesStepsRoundsUpWithoutBinaryNoise) {
  EXPECT_EQ((LearningRateSchedule{1, 100, 0.03, 0}).warmup_steps(), 3);
  EXPECT_EQ((LearningRateSchedule{1, 101, 0.03, 0}).warmup_steps(), 4);
  EXPECT_EQ((LearningRateSchedule{1, 10, 0.0, 0}).warmup_steps(), 0);
  EXPECT_EQ((LearningRateSchedule{1, 10, 1.0, 0}).warmup_steps(), 10);
}

}  // namespace
}  // namespace jforge
