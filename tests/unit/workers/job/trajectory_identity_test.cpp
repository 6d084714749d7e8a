#include "workers/trajectory_identity.h"

#include <gtest/gtest.h>

namespace jforge {
namespace {

Identity two_rounds(const std::string& store_states) {
  Identity identity = {{"run.seed", "7"},
                       {"model.hash", "aa"},
                       {"prompts.digest", "bb"},
                       {"prompts.limit", "9"},
                       {"generate.max_new_tokens", "24"},
                       {"generate.store_states", store_states},
                       {"train.compat", "\"none\""},
                       {"train.learning_rate", "0.001"}};
  for (const std::string round : {"rounds.0.", "rounds.1."}) {
    for (const char* const key : {"block_size", "noise_window", "schedule", "endpoint", "measure",
                                  "target", "mask", "steps", "epochs", "learning_rate"}) {
      identity[round + key] = "1";
    }
  }
  return identity;
}

std::string changed(Identity identity, const std::string& key, std::int32_t round = 2) {
  identity[key] = "other";
  return trajectory_identity(identity, round, "cc");
}

TEST(TrajectoryIdentity, IsAFunctionOfItsArguments) {
  const Identity identity = two_rounds("'selected'");
  EXPECT_EQ(trajectory_identity(identity, 1, "cc"), trajectory_identity(identity, 1, "cc"));
  EXPECT_EQ(trajectory_identity(identity, 1, "cc").size(), 16U);
  EXPECT_NE(trajectory_identity(identity, 1, "cc"), trajectory_identity(identity, 1, "dd"));
  EXPECT_NE(trajectory_identity(identity, 1, "cc"), trajectory_identity(identity, 2, "cc"));
}

TEST(TrajectoryIdentity, ChangesWithWhatGenerationDependsOn) {
  const Identity identity = two_rounds("'selected'");
  const std::string before = trajectory_identity(identity, 2, "cc");
  for (const char* const key :
       {"run.seed", "prompts.digest", "generate.max_new_tokens", "generate.store_states",
        "train.compat", "rounds.1.block_size", "rounds.1.noise_window", "rounds.1.schedule",
        "rounds.1.endpoint", "rounds.1.measure", "rounds.1.target"}) {
    EXPECT_NE(changed(identity, key), before) << key;
  }
}

TEST(TrajectoryIdentity, TrainingAndOtherRoundsDoNotCount) {
  const Identity identity = two_rounds("'selected'");
  const std::string before = trajectory_identity(identity, 2, "cc");
  for (const char* const key :
       {"train.learning_rate", "prompts.limit", "rounds.0.block_size", "rounds.1.mask",
        "rounds.1.steps", "rounds.1.epochs", "rounds.1.learning_rate", "rounds.2.block_size"}) {
    EXPECT_EQ(changed(identity, key), before) << key;
  }
}

TEST(TrajectoryIdentity, WithAllStatesTheScheduleDoesNotCount) {
  for (const char* const all : {"'all'", "\"all\""}) {
    const Identity identity = two_rounds(all);
    const std::string before = trajectory_identity(identity, 2, "cc");
    for (const char* const key : {"train.compat", "rounds.1.noise_window", "rounds.1.schedule"}) {
      EXPECT_EQ(changed(identity, key), before) << key;
    }
    EXPECT_NE(changed(identity, "rounds.1.block_size"), before);
  }
}

}  // namespace
}  // namespace jforge
