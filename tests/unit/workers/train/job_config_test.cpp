#include "workers/job_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;

JobConfig job(Compat compat) {
  JobConfig config;
  config.compat = compat;
  config.rounds.resize(1);
  return config;
}

TEST(JobConfigSchedule, RepoDropsTheInitialState) {
  const NoiseScheduleOptions repo = job(Compat::repo).noise_schedule(1);
  EXPECT_EQ(repo.endpoint, ScheduleEndpoint::inclusive);
  EXPECT_EQ(repo.measure, UnconvergedMeasure::prefix);
  EXPECT_EQ(repo.target, ScheduleTarget::ratio);
  EXPECT_TRUE(repo.drop_initial_state);
}

TEST(JobConfigSchedule, ThePaperAndNoModeKeepTheInitialState) {
  const NoiseScheduleOptions paper = job(Compat::paper).noise_schedule(1);
  EXPECT_EQ(paper.endpoint, ScheduleEndpoint::exclusive);
  EXPECT_EQ(paper.measure, UnconvergedMeasure::positionwise);
  EXPECT_EQ(paper.target, ScheduleTarget::ceil_count);
  EXPECT_FALSE(paper.drop_initial_state);
  const NoiseScheduleOptions none = job(Compat::none).noise_schedule(1);
  EXPECT_EQ(none.endpoint, ScheduleEndpoint::inclusive);
  EXPECT_EQ(none.measure, UnconvergedMeasure::prefix);
  EXPECT_EQ(none.target, ScheduleTarget::ratio);
  EXPECT_FALSE(none.drop_initial_state);
}

TEST(JobConfigSchedule, ARoundMayDropTheInitialState) {
  JobConfig config = job(Compat::none);
  config.rounds[0].drop_initial_state = true;
  EXPECT_TRUE(config.noise_schedule(1).drop_initial_state);
}

JobConfig complete_job() {
  JobConfig config = job(Compat::none);
  config.rounds[0].steps = 5;
  config.run.directory = "run";
  config.model.source = "model";
  config.prompts.files = {"prompts.jsonl"};
  return config;
}

std::string refusal_of(const JobConfig& config) {
  return test::message_of<ConfigError>([&] { config.validate(1); });
}

TEST(JobConfigFilter, ATaskNeedsReferenceAnswers) {
  JobConfig config = complete_job();
  config.train.filter.task = "gsm8k";
  EXPECT_THAT(refusal_of(config), HasSubstr("prompts.answer_field"));
  config.prompts.answer_field = "answer";
  EXPECT_EQ(refusal_of(config), "nothing thrown");
  config.train.filter.task = "mbpp";
  EXPECT_THAT(refusal_of(config), HasSubstr("train.filter_task = \"mbpp\""));
}

TEST(JobConfigEarlyStop, NeedsHeldOutProblems) {
  JobConfig config = complete_job();
  config.train.early_stop = {.every = 10, .task = "gsm8k"};
  const auto refusal = [&] { return refusal_of(config); };
  EXPECT_THAT(refusal(), HasSubstr("train.early_stop_data is missing"));
  config.train.early_stop.data = "held-out.jsonl";
  EXPECT_EQ(refusal(), "nothing thrown");
  config.train.early_stop.task = "humaneval";
  EXPECT_EQ(refusal(), "nothing thrown") << "tokens per forward alone count";
  config.train.early_stop.task = "no-such-task";
  EXPECT_THAT(refusal(), HasSubstr("no-such-task"));
}

TEST(JobConfigEarlyStop, DoesNotEndRoundsByWhatIsToBeMeasured) {
  JobConfig config = complete_job();
  config.evaluate.tasks = {"math", "gsm8k:plain"};
  config.evaluate.data = "benchmarks";
  config.train.early_stop = {.every = 10, .task = "gsm8k"};
  EXPECT_THAT(refusal_of(config), HasSubstr("problems of gsm8k that evaluate.tasks is to measure"));
  config.train.early_stop.data = "held-out.jsonl";
  EXPECT_EQ(refusal_of(config), "nothing thrown");
  config.train.early_stop.data.clear();
  config.evaluate.tasks = {"math"};
  EXPECT_EQ(refusal_of(config), "nothing thrown");
}

}  // namespace
}  // namespace jforge
