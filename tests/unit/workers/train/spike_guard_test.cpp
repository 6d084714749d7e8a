// The reference is the median of steps that were not skipped, and survives a checkpoint.

#include "workers/train/spike_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numbers>

#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "workers/train/trainer_state.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;

TEST(SpikeGuard, WaitsForItsWindowThenComparesWithTheMedian) {
  SpikeGuard guard({.ratio = 2, .window = 3});
  for (const double value : {100.0, 1.0, 3.0}) {
    EXPECT_FALSE(guard.is_spike(value));
    EXPECT_FALSE(guard.reference());
  }
  EXPECT_TRUE(guard.is_spike(6.001));
  EXPECT_EQ(guard.reference(), 3.0);
  EXPECT_FALSE(guard.is_spike(6.0)) << "no more than the ratio";
  EXPECT_FALSE(guard.is_spike(5.9));  // 1, 3, 6: without the spike.
  EXPECT_EQ(guard.reference(), 3.0);
  EXPECT_EQ(guard.state().skipped, 1);
}

TEST(SpikeGuard, OfAnEvenWindowTheLowerMiddleCounts) {
  SpikeGuard guard({.ratio = 2, .window = 2});
  EXPECT_FALSE(guard.is_spike(8));
  EXPECT_FALSE(guard.is_spike(1));
  EXPECT_TRUE(guard.is_spike(2.5));
  EXPECT_EQ(guard.reference(), 1.0);
}

TEST(SpikeGuard, PatienceCountsSpikesInARow) {
  SpikeGuard guard({.ratio = 2, .window = 1, .patience = 2});
  EXPECT_FALSE(guard.is_spike(1));
  for (int repeat = 0; repeat < 3; ++repeat) {
    EXPECT_TRUE(guard.is_spike(5));
    EXPECT_TRUE(guard.is_spike(5));
    EXPECT_NO_THROW(guard.expect_patience(7));
    EXPECT_FALSE(guard.is_spike(1));
  }
  EXPECT_TRUE(guard.is_spike(5));
  EXPECT_TRUE(guard.is_spike(5));
  EXPECT_TRUE(guard.is_spike(5));
  try {
    guard.expect_patience(9);
    FAIL() << "nothing was thrown";
  } catch (const NumericalError& error) {
    EXPECT_TRUE(error.on_all_ranks());
    EXPECT_THAT(error.what(), HasSubstr("3 steps in a row, up to step 9"));
    EXPECT_THAT(error.what(), HasSubstr("loss 5 is more than 2 times 1, the median of 1 steps"));
  }
}

TEST(SpikeGuard, ARestoredGuardDecidesAsTheOneBefore) {
  const SpikeGuardConfig config{.ratio = 1.5, .window = 3};
  SpikeGuard whole(config);
  for (const double value : {std::numbers::pi, std::numbers::e, 1e-300, 1.0 / 3, 9.0}) {
    static_cast<void>(whole.is_spike(value));
  }
  const TrainerState saved{.spike_guard = whole.state(), .early_stop = {}};
  const std::string cursors = with_trainer_state(R"({"total_steps": 7})", saved);
  EXPECT_THAT(cursors, HasSubstr("total_steps"));
  EXPECT_EQ(trainer_state_of(cursors), saved);
  SpikeGuard resumed(config);
  resumed.restore(trainer_state_of(cursors).spike_guard);
  for (const double value : {0.4, 3.0, 1.2, 7.0, 0.1}) {
    EXPECT_EQ(resumed.is_spike(value), whole.is_spike(value));
    EXPECT_EQ(resumed.reference(), whole.reference());
  }
  EXPECT_EQ(resumed.state(), whole.state());
  SpikeGuard smaller({.ratio = 1.5, .window = 1});
  smaller.restore(whole.state());
  EXPECT_EQ(smaller.state().recent, std::vector{whole.state().recent.back()});
}

TEST(SpikeGuard, SwitchedOffItEndsNoRun) {
  SpikeGuard off{SpikeGuardConfig{}};
  off.restore({.recent = {1, 2}, .skipped = 40, .in_a_row = 30});
  EXPECT_NO_THROW(off.expect_patience(31));
  EXPECT_EQ(off.state(), (SpikeGuardState{.recent = {}, .skipped = 40, .in_a_row = 0}));
}

TEST(TrainerState, IsFreshWhereACheckpointHasNoneAndRefusedWhereItIsGarbled) {
  EXPECT_EQ(trainer_state_of("{}"), TrainerState{});
  EXPECT_EQ(trainer_state_of(R"({"total_steps": 7})"), TrainerState{});
  EXPECT_THROW(static_cast<void>(trainer_state_of(R"({"trainer": {"spike_guard": 1}})")),
               DataError);
  EXPECT_THROW(
      static_cast<void>(trainer_state_of(
          R"({"trainer": {"spike_guard": {"recent": ["x"], "skipped": 0, "in_a_row": 0}}})")),
      DataError);
}

TEST(SpikeGuardConfig, NamesTheKeyThatIsWrong) {
  const auto refusal = [](const SpikeGuardConfig& config) {
    return test::message_of<ConfigError>([&] { config.validate(); });
  };
  EXPECT_EQ(refusal({}), "nothing thrown");
  EXPECT_THAT(refusal({.ratio = 1}), HasSubstr("train.spike_guard_ratio = 1"));
  EXPECT_THAT(refusal({.ratio = -2}), HasSubstr("train.spike_guard_ratio"));
}

}  // namespace
}  // namespace jforge
