#include "workers/train/train_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "runtime/error.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

std::string refusal(const std::function<void(TrainConfig&)>& change) {
  TrainConfig config;
  change(config);
  return test::message_of<ConfigError>([&] { config.validate(); });
}

TEST(TrainConfig, DefaultsAreValid) { EXPECT_NO_THROW(TrainConfig{}.validate()); }

TEST(TrainConfig, RefusalsNameTheKey) {
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal([](auto& c) { c.learning_rate = 0; }), HasSubstr("train.learning_rate"));
  EXPECT_THAT(refusal([](auto& c) { c.learning_rate = std::numeric_limits<double>::quiet_NaN(); }),
              HasSubstr("train.learning_rate"));
  EXPECT_THAT(refusal([](auto& c) { c.batch_samples = 0; }), HasSubstr("train.batch_samples"));
  EXPECT_EQ(refusal([](auto& c) { c.batch_samples = kMostBatchSamples; }), "nothing thrown");
  EXPECT_THAT(refusal([](auto& c) { c.batch_samples = kMostBatchSamples + 1; }),
              HasSubstr("train.batch_samples"));
  EXPECT_THAT(refusal([](auto& c) { c.tokens_per_rank = -1; }), HasSubstr("train.tokens_per_rank"));
  EXPECT_THAT(refusal([](auto& c) { c.ar_weight = -1; }), HasSubstr("train.ar_weight"));
  EXPECT_THAT(refusal([](auto& c) { c.ar_weight = c.consistency_weight = 0; }),
              HasSubstr("nothing to learn"));
  EXPECT_THAT(refusal([](auto& c) {
                c.teacher = TeacherKind::frozen;
                c.consistency_weight = 0;
              }),
              HasSubstr("train.teacher"));
  EXPECT_THAT(refusal([](auto& c) { c.ar_loss = ArLoss::distillation; }),
              HasSubstr("set train.teacher to \"frozen\""));
  EXPECT_EQ(refusal([](auto& c) {
              c.ar_loss = ArLoss::distillation;
              c.teacher = TeacherKind::frozen;
            }),
            "nothing thrown");
  const auto offloaded = [](CollectivesChoice collectives) {
    return refusal([=](auto& c) {
      c.optimizer.offload = true;
      c.collectives = collectives;
    });
  };
  EXPECT_THAT(offloaded(CollectivesChoice::nccl), HasSubstr("train.optimizer_offload"));
  EXPECT_EQ(offloaded(CollectivesChoice::automatic), "nothing thrown");
  EXPECT_EQ(offloaded(CollectivesChoice::mpi), "nothing thrown");
  EXPECT_EQ(refusal([](auto& c) { c.collectives = CollectivesChoice::nccl; }), "nothing thrown");
  EXPECT_THAT(refusal([](auto& c) { c.spike_guard.ratio = 0.5; }),
              HasSubstr("train.spike_guard_ratio"));
  EXPECT_THAT(refusal([](auto& c) { c.warmup_ratio = 1.5; }), HasSubstr("train.warmup_ratio"));
  EXPECT_THAT(refusal([](auto& c) { c.optimizer.beta2 = 1; }), HasSubstr("train.beta2"));
  EXPECT_THAT(refusal([](auto& c) { c.optimizer.clip_norm = -1; }), HasSubstr("train.clip_norm"));
  EXPECT_THAT(refusal([](auto& c) { c.optimizer.epsilon = 0; }), HasSubstr("train.epsilon"));
}

TEST(TrainConfig, ZeroStagesAreFour) {
  for (const int stage : {-1, 4}) {
    EXPECT_THAT(refusal([&](auto& c) { c.optimizer.zero_stage = stage; }),
                ::testing::HasSubstr("does not exist; give 0, 1, 2 or 3"));
  }
  for (const int stage : {0, 1, 2, 3}) {
    TrainConfig config;
    config.optimizer.zero_stage = stage;
    EXPECT_NO_THROW(config.validate());
  }
}

TEST(TrainConfig, TheConsistencyDecayIsAboveZeroAndAtMostOne) {
  for (const float decay : {0.0F, -0.5F, 1.01F, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THAT(refusal([&](auto& c) { c.consistency_decay = decay; }),
                ::testing::HasSubstr("train.consistency_decay"));
  }
  TrainConfig config;
  config.consistency_decay = 0.8F;
  EXPECT_NO_THROW(config.validate());
  EXPECT_EQ(config.packing({}).consistency_decay, 0.8F);
}

TEST(TrainConfig, CompatibilityModesSetTheirFields) {
  TrainConfig repo;
  repo.consistency_decay = 0.5F;
  repo.apply(Compat::repo);
  EXPECT_EQ(repo.consistency_decay, 1.0F);
  EXPECT_EQ(repo.reduction, LossReduction::repo);
  EXPECT_EQ(repo.kept, KeptOffsets::from_first_difference);
  EXPECT_TRUE(repo.train_prompt);
  TrainConfig paper;
  paper.consistency_decay = 0.5F;
  paper.apply(Compat::paper);
  EXPECT_EQ(paper.consistency_decay, 1.0F);
  EXPECT_EQ(paper.reduction, LossReduction::paper);
  EXPECT_EQ(paper.kept, KeptOffsets::all);
  EXPECT_FALSE(paper.train_prompt);
  const PackingOptions options = paper.packing({7});
  EXPECT_EQ(options.kept, KeptOffsets::all);
  EXPECT_EQ(options.eos_ids, std::vector<TokenId>{7});
}

// Norms of a compat = "paper" run that ended with 1 of 100 right, and of a token_mean run with 98.
TEST(TrainConfig, AConsistencyGradientThatDrownsTheOtherIsTold) {
  StepMetrics metrics;
  metrics.step = 101;
  EXPECT_EQ(unbalanced_gradients(metrics), std::nullopt);
  metrics.consistency_gradient_norm = 74;
  metrics.ar_gradient_norm = 0.07;
  EXPECT_THAT(unbalanced_gradients(metrics).value_or(""),
              ::testing::ContainsRegex("74.*0.07.*train.ar_weight"));
  metrics.ar_gradient_norm = 7.4;
  EXPECT_EQ(unbalanced_gradients(metrics), std::nullopt);
  metrics.ar_gradient_norm = 7.3;
  EXPECT_NE(unbalanced_gradients(metrics), std::nullopt);
  metrics.step = 1;
  EXPECT_EQ(unbalanced_gradients(metrics), std::nullopt);
}

}  // namespace
}  // namespace jforge
