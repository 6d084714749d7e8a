#include "workers/resume_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "runtime/error.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;

const Identity kRecorded = [] {
  Identity identity = {{"rounds.1.mask", "noise"},    {"rounds.1.steps", "10"},
                       {"rounds.2.mask", "noise"},    {"train.ar_weight", "5"},
                       {"train.batch_samples", "16"}, {"train.learning_rate", "1e-5"}};
  for (const char* const key : {"rounds.1.mask", "rounds.2.mask", "train.ar_weight"}) {
    identity.changes[key].other_loss = true;
  }
  identity.changes["train.batch_samples"].fixed_from = FixedFrom::round;
  return identity;
}();

Identity with(const std::string& key, const std::string& value) {
  Identity changed = kRecorded;
  changed[key] = value;
  return changed;
}

TEST(ResumeChoice, WhatDecidesWhichSamplesAreTrainedStays) {
  Checkpoint checkpoint;
  checkpoint.directory = "/run/checkpoints/round-1-step-00000004";
  checkpoint.manifest.state.identity = kRecorded;
  EXPECT_NO_THROW(expect_same_samples(checkpoint, kRecorded));
  EXPECT_NO_THROW(expect_same_samples(checkpoint, with("train.learning_rate", "1e-6")));
  const std::string message = test::message_of<ConfigError>(
      [&] { expect_same_samples(checkpoint, with("train.batch_samples", "8")); });
  EXPECT_THAT(message, HasSubstr("train.batch_samples: 16 → 8"));
  EXPECT_THAT(message, HasSubstr(checkpoint.directory.string()));
}

TEST(ResumeChoice, ASpikeGuardForgetsValuesOfAnotherLoss) {
  const SpikeGuardState filled{.recent = {1, 2, 3}, .skipped = 4, .in_a_row = 2};
  const SpikeGuardState emptied{.recent = {}, .skipped = 4, .in_a_row = 0};
  const auto after = [&](const std::string& key, std::int32_t round) {
    SpikeGuardState state = filled;
    forget_other_losses(state, kRecorded, with(key, "another"), round);
    return state;
  };
  EXPECT_EQ(after("train.ar_weight", 1), emptied);
  EXPECT_EQ(after("train.ar_weight", 0), emptied);
  EXPECT_EQ(after("rounds.1.mask", 1), emptied);
  EXPECT_EQ(after("rounds.2.mask", 1), filled) << "another round's";
  EXPECT_EQ(after("rounds.1.steps", 1), filled);
  // The message of a run stopped by spikes suggests this.
  EXPECT_EQ(after("train.learning_rate", 1), filled);
}

}  // namespace
}  // namespace jforge
