#include "workers/job_config.h"

#include <gtest/gtest.h>

namespace jforge {
namespace {

// A round whose settings are those of the other mode: compat must win.
JobConfig job(Compat compat, const RoundSettings& round) {
  JobConfig config;
  config.compat = compat;
  config.rounds = {round};
  return config;
}

TEST(JobConfigSchedule, RepoFixesItsFormulasAndDropsTheInitialState) {
  RoundSettings round;
  round.endpoint = ScheduleEndpoint::exclusive;
  round.measure = UnconvergedMeasure::positionwise;
  round.target = ScheduleTarget::ceil_count;
  const NoiseScheduleOptions repo = job(Compat::repo, round).noise_schedule(1);
  EXPECT_EQ(repo.endpoint, ScheduleEndpoint::inclusive);
  EXPECT_EQ(repo.measure, UnconvergedMeasure::prefix);
  EXPECT_EQ(repo.target, ScheduleTarget::ratio);
  EXPECT_TRUE(repo.drop_initial_state);
}

TEST(JobConfigSchedule, ThePaperAndNoModeKeepTheInitialState) {
  const NoiseScheduleOptions paper = job(Compat::paper, {}).noise_schedule(1);
  EXPECT_EQ(paper.endpoint, ScheduleEndpoint::exclusive);
  EXPECT_EQ(paper.measure, UnconvergedMeasure::positionwise);
  EXPECT_EQ(paper.target, ScheduleTarget::ceil_count);
  EXPECT_FALSE(paper.drop_initial_state);
  RoundSettings round;
  round.endpoint = ScheduleEndpoint::exclusive;
  const NoiseScheduleOptions none = job(Compat::none, round).noise_schedule(1);
  EXPECT_EQ(none.endpoint, ScheduleEndpoint::exclusive);
  EXPECT_FALSE(none.drop_initial_state);
}

}  // namespace
}  // namespace jforge
