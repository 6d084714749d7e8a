#include "launch/commands/plan_time.h"

#include <gtest/gtest.h>

#include "tests/unit/launch/plan_model.h"

namespace jforge {
namespace {

using test::plan_model;

RoundWork work() {
  RoundWork round;
  round.prompts_generated = 100;
  round.steps = 50;
  round.step_samples = 4;
  round.prompt_tokens = 30;
  round.answer_tokens = 64;
  round.block_size = 16;
  round.batch_prompts = 4;
  return round;
}

// Matrix weights by hand: per layer q and o 64², k and v 64·32, three of 64·128; head 1000·64.
constexpr double kWeights = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) + 1000 * 64;

TEST(PlanTime, TrainingIsSixFlopsPerRowAndWeight) {
  const RoundSeconds seconds = estimate_round(plan_model(), work(), {1e9, 1e9, 1e9});
  const double rows = 200 * (30 + 2 * 64);
  const double attention = 4.0 * 2 * 64 * (30 + 32);
  EXPECT_NEAR(seconds.train, rows * 3 * (2 * kWeights + attention) / (1e9 * kPlannedEfficiency),
              1e-9);
  RoundWork recomputed = work();
  recomputed.recompute = true;
  EXPECT_NEAR(estimate_round(plan_model(), recomputed, {1e9, 1e9, 1e9}).train,
              seconds.train * 4 / 3, 1e-9);
}

TEST(PlanTime, BesideADrafterTheModelsOwnRowsTakeAForward) {
  const TransformerConfig model = plan_model();
  const AdapterShape adapter;
  EXPECT_EQ(drafter_forwards(model, {}, true), 0);
  EXPECT_EQ(drafter_forwards(model, adapter, false), 2);
  EXPECT_EQ(drafter_forwards(model, adapter, true), 3);
  const HeadShape head = completed({}, model);
  const double layer = (kWeights - 1000 * 64) / 2;
  EXPECT_DOUBLE_EQ(drafter_forwards(model, head, true), (4 * layer + 2 * 1000 * 64) / kWeights);
  RoundWork drafted = work();
  drafted.drafter_forwards = 0.5;
  EXPECT_DOUBLE_EQ(estimate_round(model, drafted, {1e9, 1e9, 1e9}).train,
                   estimate_round(model, work(), {1e9, 1e9, 1e9}).train * (30 + 64 + 64 * 0.5) /
                       (3 * (30 + 2 * 64)));
}

TEST(PlanTime, DecodingIsBoundByReadingOrByComputing) {
  // Every pass reads all weights, and four sequences gain a token each.
  const RoundSeconds reading = estimate_round(plan_model(), work(), {1e18, 1e18, 1e6});
  EXPECT_NEAR(reading.generate, 64 * 100 / 4.0 * 4 * kWeights / 1e6, 1e-3);
  // Memory speed does not matter.
  EXPECT_DOUBLE_EQ(estimate_round(plan_model(), work(), {1e9, 1e9, 1e15}).generate,
                   estimate_round(plan_model(), work(), {1e9, 1e9, 2e15}).generate);
}

TEST(PlanTime, ALastBatchThatIsNotFullReadsAllWeightsToo) {
  RoundWork rest = work();
  rest.prompt_tokens = 0;
  const auto seconds = [&](std::int64_t prompts, const MachineSpeed& speed) {
    rest.prompts_generated = prompts;
    return estimate_round(plan_model(), rest, speed).generate;
  };
  const MachineSpeed slow_memory{1e18, 1e18, 1e6};
  EXPECT_DOUBLE_EQ(seconds(5, slow_memory), seconds(8, slow_memory));
  const MachineSpeed slow_products{1e9, 1e9, 1e18};
  EXPECT_DOUBLE_EQ(8 * seconds(5, slow_products), 5 * seconds(8, slow_products));
}

TEST(PlanTime, AStepTakesTheLongerOfComputingAndSending) {
  RoundWork sent = work();
  sent.step_payload.all_gather = 3e9;
  const double computing = estimate_round(plan_model(), work(), {1e9, 1e9, 1e9, 1e6}).train;
  EXPECT_EQ(estimate_round(plan_model(), sent, {1e9, 1e9, 1e9, 0}).train, computing);
  EXPECT_EQ(estimate_round(plan_model(), sent, {1e9, 1e9, 1e9, 1e12}).train, computing);
  EXPECT_EQ(estimate_round(plan_model(), sent, {1e9, 1e9, 1e9, 1e6}).train, 50 * 3e3);
  sent.step_payload.across = 1e9;
  EXPECT_EQ(estimate_round(plan_model(), sent, {1e9, 1e9, 1e9, 1e6, 1e5}).train, 50 * 13e3);
}

TEST(PlanTime, ADeviceIsAsFastAsWhatDecodingMultiplies) {
  const KnownDevice device{"Any", 8e12, 1e12, 1e12, 80e9, 450e9};
  const auto flops = [&](WeightStorage storage) {
    return sheet_speed(device, storage, DType::bfloat16, 8, 8).decoding_flops;
  };
  for (const WeightStorage storage :
       {WeightStorage::automatic, WeightStorage::float32, WeightStorage::bfloat16}) {
    EXPECT_EQ(flops(storage), 1e12) << name_of(storage);
  }
  EXPECT_EQ(flops(WeightStorage::bfloat16_arithmetic), 8e12);
  const auto link = [&](double bytes, int ranks) {
    KnownDevice other = device;
    other.link_bytes_per_second = bytes;
    return sheet_speed(other, WeightStorage::automatic, DType::float32, ranks, ranks)
        .link_bytes_per_second;
  };
  EXPECT_EQ(link(450e9, 8), 450e9);
  EXPECT_EQ(link(450e9, 9), 400e9) << "8 network links of 50 GB/s";
  EXPECT_EQ(link(300e9, 9), 300e9);
}

TEST(PlanTime, TrainingTakesTheSpeedOfItsOwnType) {
  const RoundSeconds one = estimate_round(plan_model(), work(), {1e9, 1e9, 1e9});
  const RoundSeconds faster = estimate_round(plan_model(), work(), {1e9, 4e9, 1e9});
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
