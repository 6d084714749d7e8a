// Checkpoints over virtual ranks: any rank count and ZeRO stage reads any other's bits and
// continues.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/error.h"
#include "tests/distributed/checkpoints/virtual_resume_fixture.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;
using namespace jforge::test;

class VirtualResume : public ::testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  [[nodiscard]] static int ranks() { return std::get<0>(GetParam()); }
  [[nodiscard]] static DType compute() { return std::get<1>(GetParam()); }
  [[nodiscard]] static std::vector<int> stages() {
    return compute() == DType::float32 ? std::vector{0, 1, 2, 3} : std::vector{1, 3};
  }
  TemporaryDirectory root_;
};
INSTANTIATE_TEST_SUITE_P(SavedBy, VirtualResume,
                         ::testing::Combine(::testing::Range(1, kMostRanks + 1),
                                            ::testing::Values(DType::float32, DType::bfloat16)));

TEST_P(VirtualResume, EveryRankCountAndStageReadsWhatEveryOtherWrote) {
  for (const int saving_stage : stages()) {
    SCOPED_TRACE("saved at stage " + std::to_string(saving_stage));
    const std::filesystem::path root = root_ / std::to_string(saving_stage);
    const SavedRun run = train_and_save({ranks(), saving_stage, compute()}, root);
    EXPECT_EQ(run.saved.updates, kSavedStep);
    EXPECT_NE(run.saved, run.end.state);
    for (int loading_ranks = 1; loading_ranks <= kMostRanks; ++loading_ranks) {
      for (const int stage : stages()) {
        SCOPED_TRACE("loaded by " + std::to_string(loading_ranks) + " ranks at stage " +
                     std::to_string(stage));
        const Setting setting{loading_ranks, stage, compute()};
        EXPECT_EQ(load(setting, checkpoint_under(root)), run.saved);
        if (loading_ranks == ranks()) {
          EXPECT_EQ(load_and_train(setting, checkpoint_under(root)), run.end);
        }
      }
    }
  }
}

TEST(VirtualResumeCopies, OtherDivisionsReadWhatCopiesTookTurnsToWrite) {
  for (const int stage : {0, 1, 3}) {
    SCOPED_TRACE(stage);
    const TemporaryDirectory root;
    const Setting setting{.ranks = 4, .stage = stage, .shard_ranks = 2};
    const SavedRun run = train_and_save(setting, root.path());
    EXPECT_NE(run.saved, run.end.state);
    EXPECT_EQ(open_checkpoint(checkpoint_under(root.path())).manifest.world_size, 2);
    EXPECT_EQ(load_and_train(setting, checkpoint_under(root.path())), run.end);
    for (const auto& [ranks, shard_ranks] : {std::pair(4, 4), {4, 1}, {3, 0}, {1, 0}}) {
      const Setting other{.ranks = ranks, .stage = stage, .shard_ranks = shard_ranks};
      EXPECT_EQ(load(other, checkpoint_under(root.path())), run.saved);
    }
  }
}

TEST(VirtualResumeGuard, AResumedGuardLeavesOutTheUpdateThatTheRunBeforeDid) {
  const TemporaryDirectory root;
  // At this rate the loss jumps.
  const SpikeGuardConfig guard{.ratio = 1 + 1e-12, .window = kSavedStep};
  const Setting setting{.ranks = 2, .stage = 2, .spike_guard = guard, .learning_rate = 1};
  const SavedRun run = train_and_save(setting, root.path());
  ASSERT_EQ(run.end.state, run.saved) << "the third step was no spike";
  EXPECT_EQ(load_and_train(setting, checkpoint_under(root.path())), run.end);
  Setting other = setting;
  other.stage = 3;
  EXPECT_EQ(load_and_train(other, checkpoint_under(root.path())), run.end);
}

TEST(VirtualResumeTeacher, AFrozenTeacherIsTheRoundsBeginningAgain) {
  for (const int ranks : {1, 2, 4}) {
    const TemporaryDirectory root;
    Setting setting{.ranks = ranks, .stage = 1, .teacher = TeacherKind::frozen};
    const SavedRun run = train_and_save(setting, root.path());
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(stage);
      setting.stage = stage;
      EXPECT_EQ(load_and_train(setting, checkpoint_under(root.path())), run.end);
    }
    setting.teacher = TeacherKind::detached;
    EXPECT_NE(load_and_train(setting, checkpoint_under(root.path())), run.end);
  }
}

TEST(VirtualResumeFailure, ARankThatCannotReadIsEverybodysErrorAndNoWeightChanges) {
  constexpr int kRanks = 3;
  const TemporaryDirectory root;
  static_cast<void>(train_and_save({kRanks, 1, DType::float32}, root.path()));
  const Checkpoint checkpoint = open_checkpoint(checkpoint_under(root.path()));
  // At the same rank count only rank 1 needs it.
  std::filesystem::remove(checkpoint.directory / shard_file_name(1, kRanks));
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    Assembly before(kRanks);
    Assembly after(kRanks);
    VirtualWorld(kRanks).run([&](const Communicator& comm) {
      TrainingRank rank(comm, {kRanks, stage, DType::float32});
      before.add(rank.optimizer());
      MemoryAccount account("resume");
      const ParameterTable table(tiny_config(), kRanks);
      EXPECT_THAT(
          message_of(ExitCode::input_data,
                     [&] { resume_training(comm, checkpoint, table, rank.optimizer(), account); }),
          HasSubstr("rank 1 ("));
      after.add(rank.optimizer());
    });
    EXPECT_EQ(after.state().vectors[0], before.state().vectors[0]);
    EXPECT_EQ(after.state().updates, 0);
  }
}

}  // namespace
}  // namespace jforge
