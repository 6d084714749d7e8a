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
  for (const std::string round : {"rounds.1.", "rounds.2."}) {
    for (const char* const key :
         {"block_size", "noise_window", "schedule", "mask", "steps", "epochs", "learning_rate"}) {
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
        "rounds.2.drop_initial_state", "train.compat", "rounds.2.block_size",
        "rounds.2.noise_window", "rounds.2.schedule"}) {
    EXPECT_NE(changed(identity, key), before) << key;
  }
}

TEST(TrajectoryIdentity, RoundedWeightsAreToldFromTheModelsOwn) {
  const Identity exact = two_rounds("'selected'");
  Identity rounded = exact;
  rounded["model.decode_weights"] = "\"bfloat16\"";
  for (const std::int32_t round : {1, 2}) {
    EXPECT_NE(trajectory_identity(exact, round, "cc"), trajectory_identity(rounded, round, "cc"));
  }
}

TEST(TrajectoryIdentity, TheOrderOfSumsCountsWhereBfloat16IsMultiplied) {
  Identity identity = two_rounds("'selected'");
  for (const char* const storage : {"\"bfloat16\"", "\"bfloat16_arithmetic\"", "\"int8\""}) {
    identity["model.decode_weights"] = storage;
    const bool multiplied = identity["model.decode_weights"] == "\"bfloat16_arithmetic\"";
    EXPECT_EQ(changed(identity, kBFloat16SumsFact) != trajectory_identity(identity, 2, "cc"),
              multiplied);
  }
}

TEST(TrajectoryIdentity, TrainingAndOtherRoundsDoNotCount) {
  const Identity identity = two_rounds("'selected'");
  const std::string before = trajectory_identity(identity, 2, "cc");
  for (const char* const key :
       {"train.learning_rate", "prompts.limit", "rounds.1.block_size", "rounds.2.mask",
        "rounds.2.steps", "rounds.2.epochs", "rounds.2.learning_rate", "rounds.3.block_size"}) {
    EXPECT_EQ(changed(identity, key), before) << key;
  }
}

TEST(TrajectoryIdentity, WithAllStatesTheScheduleDoesNotCount) {
  for (const char* const all : {"'all'", "\"all\""}) {
    const Identity identity = two_rounds(all);
    const std::string before = trajectory_identity(identity, 2, "cc");
    for (const char* const key : {"train.compat", "rounds.2.noise_window", "rounds.2.schedule"}) {
      EXPECT_EQ(changed(identity, key), before) << key;
    }
    EXPECT_NE(changed(identity, "rounds.2.block_size"), before);
  }
}

}  // namespace
}  // namespace jforge
