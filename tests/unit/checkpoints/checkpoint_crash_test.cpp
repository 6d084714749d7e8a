// After a kill at any point the old or the new checkpoint loads (faults 9, 10).

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "tests/support/file_size_limit.h"
#include "tests/unit/checkpoints/checkpoint_fixture.h"

namespace jforge {
namespace {

using test::simulate_checkpoint;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

CheckpointConfig keep(std::int64_t last, std::int64_t every = 0) {
  CheckpointConfig config;
  config.keep_last = last;
  config.keep_every = every;
  return config;
}

/// Saves step 1000 in a child that dies at `fault`; returns its exit status.
int save_in_child(const std::filesystem::path& root, const std::string& fault) {
  const pid_t child = fork();
  if (child == 0) {
    arm_faults(fault, 0);
    simulate_checkpoint(root, 1, 1000, 2, 6);
    static_cast<void>(prune_checkpoints(root, 1, 1000, keep(1)));
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(CheckpointCrash, KilledAnywhereOldOrNewLoads) {
  int killed = 0;
  int old_loaded = 0;
  int new_loaded = 0;
  for (const char* place : {"checkpoint.data", "checkpoint.fsync", "checkpoint.rename",
                            "checkpoint.manifest", "checkpoint.prune", "publish.data",
                            "publish.fsync", "publish.rename", "publish.directory"}) {
    for (int visit = 1; visit <= 3; ++visit) {
      const test::TemporaryDirectory root;
      simulate_checkpoint(root.path(), 1, 500, 2, 5);
      const std::string fault = std::string("kill@") + place + ":0:" + std::to_string(visit);
      SCOPED_TRACE(fault);
      const int status = save_in_child(root.path(), fault);
      killed += WIFSIGNALED(status) ? 1 : 0;
      const CheckpointSearch search = find_newest_checkpoint(root.path());
      ASSERT_TRUE(search.newest.has_value());
      const std::int64_t step = search.newest->manifest.state.step;
      ASSERT_TRUE(step == 500 || step == 1000);
      (step == 500 ? old_loaded : new_loaded) += 1;
      const test::SimulatedState expected(3, step == 500 ? 5 : 6);
      EXPECT_EQ(test::read_weights(*search.newest, expected.table), expected.weights);
      sweep_temporaries(root.path());
      std::filesystem::remove_all(root.path() / checkpoint_directory_name(1, 2000));
      simulate_checkpoint(root.path(), 1, 2000, 1, 7);
      EXPECT_EQ(find_newest_checkpoint(root.path()).newest->manifest.state.step, 2000);
      static_cast<void>(prune_checkpoints(root.path(), 1, 2000, keep(1)));
      EXPECT_EQ(list_checkpoint_directories(root.path()).size(), 1U);
    }
  }
  EXPECT_GE(killed, 15);  // on both sides of the commit
  EXPECT_GE(old_loaded, 10);
  EXPECT_GE(new_loaded, 2);
}

TEST(CheckpointCrash, FileSizeLimitIsAnEnvironmentErrorAndTheLastGoodStays) {
  const test::TemporaryDirectory root;
  simulate_checkpoint(root.path(), 1, 500, 1, 5);
  for (const rlim_t bytes : {rlim_t{0}, rlim_t{4096}, rlim_t{60000}}) {
    {
      const test::FileSizeLimit limit(bytes);
      EXPECT_THROW(simulate_checkpoint(root.path(), 1, 1000, 1, 6), EnvironmentError) << bytes;
    }
    EXPECT_EQ(find_newest_checkpoint(root.path()).newest->manifest.state.step, 500);
    EXPECT_TRUE(std::filesystem::is_empty(root.path() / checkpoint_directory_name(1, 1000)));
  }
  simulate_checkpoint(root.path(), 1, 1000, 1, 6);
  EXPECT_EQ(find_newest_checkpoint(root.path()).newest->manifest.state.step, 1000);
}

std::vector<std::int64_t> steps_left(const std::filesystem::path& root) {
  std::vector<std::int64_t> steps;
  for (const CheckpointDirectory& directory : list_checkpoint_directories(root)) {
    steps.push_back(directory.step);
  }
  return steps;
}

TEST(CheckpointPrune, KeepsTheLastAndTheMilestones) {
  const test::TemporaryDirectory root;
  for (std::int64_t step = 100; step <= 700; step += 100) {
    simulate_checkpoint(root.path(), 1, step, 1, 5);
  }
  EXPECT_THAT(prune_checkpoints(root.path(), 1, 700, keep(7)), IsEmpty());
  static_cast<void>(prune_checkpoints(root.path(), 1, 700, keep(2, 300)));
  EXPECT_THAT(steps_left(root.path()), ElementsAre(700, 600, 300));
  static_cast<void>(prune_checkpoints(root.path(), 1, 700, keep(1)));
  EXPECT_THAT(steps_left(root.path()), ElementsAre(700));
}

TEST(CheckpointPrune, NeverTouchesTheNewestNorAnythingNewer) {
  const test::TemporaryDirectory root;
  for (std::int64_t step = 100; step <= 300; step += 100) {
    simulate_checkpoint(root.path(), 1, step, 1, 5);
  }
  static_cast<void>(prune_checkpoints(root.path(), 1, 200, keep(1)));
  EXPECT_THAT(steps_left(root.path()), ElementsAre(300, 200));
}

TEST(CheckpointPrune, KeepsTheModelThatTheRoundGeneratesFrom) {
  const test::TemporaryDirectory root;
  for (const std::int64_t round : {1, 2, 3}) {
    for (const std::int64_t step : {100, 200}) {
      simulate_checkpoint(root.path(), round, step, 1, 5);
    }
  }
  std::filesystem::remove(simulate_checkpoint(root.path(), 2, 300, 1, 5) / kManifestName);
  static_cast<void>(prune_checkpoints(root.path(), 3, 200, keep(1)));
  std::vector<std::string> left;
  for (const CheckpointDirectory& directory : list_checkpoint_directories(root.path())) {
    left.push_back(directory.path.filename().string());
  }
  EXPECT_THAT(left,
              ElementsAre(checkpoint_directory_name(3, 200), checkpoint_directory_name(2, 200)));
}

TEST(CheckpointPrune, RemovesRemainsThatNeverBecameCheckpoints) {
  const test::TemporaryDirectory root;
  std::filesystem::remove(simulate_checkpoint(root.path(), 1, 100, 1, 5) / kManifestName);
  simulate_checkpoint(root.path(), 1, 200, 1, 5);
  simulate_checkpoint(root.path(), 1, 300, 1, 5);
  static_cast<void>(prune_checkpoints(root.path(), 1, 300, keep(3)));
  EXPECT_THAT(steps_left(root.path()), ElementsAre(300, 200));
}

TEST(CheckpointConfig, RefusalsNameTheKey) {
  CheckpointConfig config;
  EXPECT_NO_THROW(config.validate());
  config.keep_last = 0;
  EXPECT_THROW(config.validate(), ConfigError);
  config = {};
  config.every_steps = 0;
  EXPECT_THROW(config.validate(), ConfigError);
}

}  // namespace
}  // namespace jforge
