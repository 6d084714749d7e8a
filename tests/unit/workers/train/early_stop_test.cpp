#include "workers/train/early_stop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "runtime/error.h"
#include "workers/train/trainer_state.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;

EarlyStopConfig config_for(EarlyStopMeasure measure) {
  return {.every = 1, .task = "gsm8k", .measure = measure, .patience = 2, .min_gain = 0.1};
}

TEST(EarlyStop, GainsCountFromTheBestAndPatienceInARow) {
  EarlyStop stop(config_for(EarlyStopMeasure::tpf));
  EXPECT_FALSE(stop.add(2.0, 0.0));
  EXPECT_FALSE(stop.add(2.2, 0.0)) << "one tenth more is no gain yet: one without";
  EXPECT_EQ(stop.state().best_tpf, 2.0);
  EXPECT_FALSE(stop.add(2.3, 0.0));
  EXPECT_EQ(stop.state(),
            (EarlyStopState{.best_tpf = 2.3, .best_accuracy = {}, .without_gain = 0}));
  EXPECT_FALSE(stop.add(1.0, 1.0)) << "accuracy does not count";
  EXPECT_TRUE(stop.add(2.4, 1.0));
}

TEST(EarlyStop, AccuracyGainsAsItIsAndEitherTakesBoth) {
  EarlyStop accuracy(config_for(EarlyStopMeasure::accuracy));
  EXPECT_FALSE(accuracy.add(1.0, 0.0));
  EXPECT_FALSE(accuracy.add(9.0, 0.05));
  EXPECT_TRUE(accuracy.add(9.0, 0.1));
  EarlyStop either(config_for(EarlyStopMeasure::either));
  EXPECT_FALSE(either.add(1.0, 0.5));
  EXPECT_FALSE(either.add(0.9, 0.7));
  EXPECT_FALSE(either.add(1.2, 0.1));
  EXPECT_EQ(either.state(),
            (EarlyStopState{.best_tpf = 1.2, .best_accuracy = 0.7, .without_gain = 0}));
  EXPECT_FALSE(either.add(std::nullopt, std::nullopt));
  EXPECT_TRUE(either.add(std::nullopt, std::nullopt));
}

TEST(EarlyStop, ARestoredOneDecidesAlike) {
  EarlyStop whole(config_for(EarlyStopMeasure::either));
  EXPECT_FALSE(whole.add(1.0 / 3, std::nullopt));
  EXPECT_FALSE(whole.add(1.0 / 3, std::nullopt));
  const TrainerState saved{.spike_guard = {}, .early_stop = whole.state()};
  const TrainerState read = trainer_state_of(with_trainer_state("{}", saved));
  EXPECT_EQ(read, saved);
  EarlyStop resumed(config_for(EarlyStopMeasure::either));
  EXPECT_TRUE(resumed.restore(read.early_stop));
  EXPECT_TRUE(resumed.add(1.0 / 3, std::nullopt));
}

TEST(EarlyStop, FiguresOfOtherProblemsAreNotRestored) {
  EarlyStop before(config_for(EarlyStopMeasure::either), "easy");
  EXPECT_FALSE(before.add(9.0, 0.9));
  const TrainerState saved =
      trainer_state_of(with_trainer_state("{}", {.spike_guard = {}, .early_stop = before.state()}));
  EarlyStop same(config_for(EarlyStopMeasure::either), "easy");
  EXPECT_TRUE(same.restore(saved.early_stop));
  EXPECT_EQ(same.state(), before.state());
  EarlyStop other(config_for(EarlyStopMeasure::either), "hard");
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
    try {
      config.validate();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal([](auto&) {}), "accepted");
  EXPECT_THAT(refusal([](auto& c) { c.every = -1; }), HasSubstr("train.early_stop_every"));
  EXPECT_THAT(refusal([](auto& c) { c.every = 5; }), HasSubstr("train.early_stop_task"));
  EXPECT_THAT(refusal([](auto& c) { c.problems = 0; }), HasSubstr("train.early_stop_problems"));
  EXPECT_THAT(refusal([](auto& c) { c.max_new_tokens = 0; }),
              HasSubstr("train.early_stop_max_new_tokens"));
  EXPECT_THAT(refusal([](auto& c) { c.patience = 0; }), HasSubstr("train.early_stop_patience"));
  EXPECT_THAT(refusal([](auto& c) { c.min_gain = -1; }), HasSubstr("train.early_stop_min_gain"));
}

}  // namespace
}  // namespace jforge
