#include "launch/commands/plan_time.h"

#include <gtest/gtest.h>

#include "tests/unit/launch/plan_model.h"

namespace jforge {
namespace {

using test::plan_model;

RoundWork work() {
  RoundWork round;
  round.prompts_generated = 100;
  round.samples_trained = 200;
  round.prompt_tokens = 30;
  round.answer_tokens = 64;
  round.block_size = 16;
  round.batch_prompts = 4;
  return round;
}

// Matrix weights by hand: per layer q and o 64², k and v 64·32, three of 64·128; head 1000·64.
constexpr double kWeights = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) + 1000 * 64;

TEST(PlanTime, TrainingIsSixFlopsPerRowAndWeight) {
  const RoundSeconds seconds = estimate_round(plan_model(), work(), {1e9, 1e9, 1e9}, 1);
  const double rows = 200 * (30 + 2 * 64);
  const double attention = 4.0 * 2 * 64 * (30 + 32);
  EXPECT_NEAR(seconds.train, rows * 3 * (2 * kWeights + attention) / (1e9 * kPlannedEfficiency),
              1e-9);
  RoundWork recomputed = work();
  recomputed.recompute = true;
  EXPECT_NEAR(estimate_round(plan_model(), recomputed, {1e9, 1e9, 1e9}, 1).train,
              seconds.train * 4 / 3, 1e-9);
}

TEST(PlanTime, DecodingIsBoundByReadingOrByComputing) {
  // Every pass reads all weights, and four sequences gain a token each.
  const RoundSeconds reading = estimate_round(plan_model(), work(), {1e18, 1e18, 1e6}, 1);
  EXPECT_NEAR(reading.generate, 64 * 100 / 4.0 * 4 * kWeights / 1e6, 1e-3);
  // Memory speed does not matter.
  EXPECT_DOUBLE_EQ(estimate_round(plan_model(), work(), {1e9, 1e9, 1e15}, 1).generate,
                   estimate_round(plan_model(), work(), {1e9, 1e9, 2e15}, 1).generate);
}

TEST(PlanTime, MoreRanksWithTheirSpeedsSummedShareTheWork) {
  const RoundSeconds one = estimate_round(plan_model(), work(), {1e9, 1e9, 1e9}, 1);
  const RoundSeconds two = estimate_round(plan_model(), work(), {2e9, 2e9, 2e9}, 2);
  EXPECT_NEAR(two.train, one.train / 2, 1e-9);
  EXPECT_NEAR(two.generate, one.generate / 2, 1e-9);
}

TEST(PlanTime, TrainingTakesTheSpeedOfItsOwnType) {
  const RoundSeconds one = estimate_round(plan_model(), work(), {1e9, 1e9, 1e9}, 1);
  const RoundSeconds faster = estimate_round(plan_model(), work(), {1e9, 4e9, 1e9}, 1);
  EXPECT_NEAR(faster.train, one.train / 4, 1e-9);
  EXPECT_EQ(faster.generate, one.generate);
}

TEST(PlanTime, DurationsAreReadable) {
  EXPECT_EQ(duration_text(0.2), "0 s");
  EXPECT_EQ(duration_text(89), "89 s");
  EXPECT_EQ(duration_text(720), "12 min");
  EXPECT_EQ(duration_text(12600), "3.5 h");
  EXPECT_EQ(duration_text(3 * 86400), "3.0 days");
}

}  // namespace
}  // namespace jforge
