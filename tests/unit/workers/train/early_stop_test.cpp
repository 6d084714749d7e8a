#include "workers/train/early_stop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "workers/train/trainer_state.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;

const EarlyStopConfig kConfig = {.every = 1, .task = "gsm8k", .patience = 2};

TEST(EarlyStop, GainsCountFromTheBestAndPatienceInARow) {
  EarlyStop stop(kConfig);
  EXPECT_FALSE(stop.add(2.0, std::nullopt));
  EXPECT_FALSE(stop.add(2.02, std::nullopt)) << "one hundredth more is no gain yet: one without";
  EXPECT_EQ(stop.state().best_tpf, 2.0);
  EXPECT_FALSE(stop.add(2.03, std::nullopt));
  EXPECT_EQ(stop.state(),
            (EarlyStopState{.best_tpf = 2.03, .best_accuracy = {}, .without_gain = 0}));
  EXPECT_FALSE(stop.add(1.0, std::nullopt));
  EXPECT_TRUE(stop.add(2.04, std::nullopt));
}

TEST(EarlyStop, AGainInEitherCountsAndThatOfAccuracyAsItIs) {
  EarlyStop stop(kConfig);
  EXPECT_FALSE(stop.add(1.0, 0.5));
  EXPECT_FALSE(stop.add(0.9, 0.7));
  EXPECT_FALSE(stop.add(1.2, 0.1));
  EXPECT_EQ(stop.state(),
            (EarlyStopState{.best_tpf = 1.2, .best_accuracy = 0.7, .without_gain = 0}));
  EXPECT_FALSE(stop.add(1.2, 0.705));
  EXPECT_TRUE(stop.add(std::nullopt, std::nullopt));
}

TEST(EarlyStop, ARestoredOneDecidesAlike) {
  EarlyStop whole(kConfig);
  EXPECT_FALSE(whole.add(1.0 / 3, std::nullopt));
  EXPECT_FALSE(whole.add(1.0 / 3, std::nullopt));
  const TrainerState saved{.spike_guard = {}, .early_stop = whole.state()};
  const TrainerState read = trainer_state_of(with_trainer_state("{}", saved));
  EXPECT_EQ(read, saved);
  EarlyStop resumed(kConfig);
  EXPECT_TRUE(resumed.restore(read.early_stop));
  EXPECT_TRUE(resumed.add(1.0 / 3, std::nullopt));
}

TEST(EarlyStop, FiguresOfOtherProblemsAreNotRestored) {
  EarlyStop before(kConfig, "easy");
  EXPECT_FALSE(before.add(9.0, 0.9));
  const TrainerState saved =
      trainer_state_of(with_trainer_state("{}", {.spike_guard = {}, .early_stop = before.state()}));
  EarlyStop same(kConfig, "easy");
  EXPECT_TRUE(same.restore(saved.early_stop));
  EXPECT_EQ(same.state(), before.state());
  EarlyStop other(kConfig, "hard");
  EXPECT_FALSE(other.restore(saved.early_stop));
  EXPECT_EQ(other.state(), (EarlyStopState{.problems = "hard"}));
  // An earlier version's checkpoint does not name the problems.
  EXPECT_TRUE(other.restore({.best_tpf = 2}));
  EXPECT_EQ(other.state(), (EarlyStopState{.best_tpf = 2, .problems = "hard"}));
}

TEST(EarlyStopConfig, NamesTheKeyThatIsWrong) {
  const auto refusal = [](const std::function<void(EarlyStopConfig&)>& change) -> std::string {
    EarlyStopConfig config;
    change(config);
    return test::message_of<ConfigError>([&] { config.validate(); });
  };
  EXPECT_EQ(refusal([](auto&) {}), "nothing thrown");
  EXPECT_THAT(refusal([](auto& c) { c.every = -1; }), HasSubstr("train.early_stop_every"));
  EXPECT_THAT(refusal([](auto& c) { c.every = 5; }), HasSubstr("train.early_stop_task"));
  EXPECT_THAT(refusal([](auto& c) { c.problems = 0; }), HasSubstr("train.early_stop_problems"));
  EXPECT_THAT(refusal([](auto& c) { c.patience = 0; }), HasSubstr("train.early_stop_patience"));
}

}  // namespace
}  // namespace jforge
