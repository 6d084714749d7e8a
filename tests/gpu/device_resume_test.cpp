// Checkpoints move bit for bit between devices, rank counts and ZeRO stages.

#include <gtest/gtest.h>

#include <string>

#include "tests/distributed/checkpoints/virtual_resume_fixture.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

using namespace jforge::test;

const char* name_of(Place place) {
  return place == Place::host ? "host" : place == Place::tested ? "device" : "offloaded";
}

TEST(DeviceResume, CheckpointsGoBetweenHostAndDeviceAtAnyRankCountAndStage) {
  struct Case {
    Place place;
    int ranks;
    int stage;
  };
  for (const auto& [place, ranks, stage] :
       {Case{Place::host, 2, 1}, Case{Place::tested, 2, 3}, Case{Place::offloaded, 3, 2}}) {
    SCOPED_TRACE(std::string("saved on ") + name_of(place) + " at stage " + std::to_string(stage));
    const TemporaryDirectory root;
    const SavedRun run =
        train_and_save({.ranks = ranks, .stage = stage, .place = place}, root.path());
    EXPECT_EQ(run.saved.updates, kSavedStep);
    EXPECT_NE(run.saved, run.end.state);
    for (const auto& [loading, loading_ranks, loading_stage] :
         {Case{Place::host, 4, 3}, Case{Place::tested, 1, 0}, Case{Place::tested, 2, 1},
          Case{Place::offloaded, 3, 2}}) {
      const Setting setting{.ranks = loading_ranks, .stage = loading_stage, .place = loading};
      SCOPED_TRACE(std::string("loaded on ") + name_of(loading) + " at stage " +
                   std::to_string(loading_stage));
      EXPECT_EQ(load(setting, checkpoint_under(root.path())), run.saved);
      Setting same_ranks = setting;
      same_ranks.ranks = ranks;
      const End end = load_and_train(same_ranks, checkpoint_under(root.path()));
      if ((loading == Place::host) == (place == Place::host)) {
        EXPECT_EQ(end, run.end);
      } else {
        EXPECT_NEAR(end.loss / run.end.loss, 1, 1e-5);
        EXPECT_LT(relative_l2(end.state.vectors[0], run.end.state.vectors[0]), 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace jforge
