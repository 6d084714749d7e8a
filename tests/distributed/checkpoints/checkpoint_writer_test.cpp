// Saving by several ranks: the manifest comes last, one rank's failure fails all, and the previous
// checkpoint stays.

#include "checkpoints/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "tests/distributed/checkpoints/shared_directory.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi_test.h"
#include "tests/unit/checkpoints/checkpoint_fixture.h"

namespace jforge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace jforge::test;

class CheckpointWriterTest : public ::testing::Test {
 protected:
  void TearDown() override { arm_faults("", comm_.rank()); }

  static ConstTensorView shard_view(const std::vector<float>& shard) {
    return {shard.data(), Shape{static_cast<std::int64_t>(shard.size())}};
  }
  TrainingStateView view(const SimulatedState& state) const {
    const auto rank = static_cast<std::size_t>(comm_.rank());
    return {state.table, ConstTensorView(state.weights.data(), Shape{state.table.flat_size()}),
            shard_view(state.first[rank]), shard_view(state.second[rank])};
  }
  void save(CheckpointWriter& writer, std::int64_t step, int seed) const {
    writer.save(training_state(1, step), view(SimulatedState(comm_.size(), seed)));
    writer.finish();
  }
  /// Expects that all ranks agree on the newest checkpoint's step and that it holds the values of
  /// `seed`.
  void expect_newest(std::int64_t step, int seed) const {
    const CheckpointSearch search = find_newest_checkpoint(comm_, root_.path());
    ASSERT_TRUE(search.newest.has_value());
    EXPECT_EQ(search.newest->manifest.state, training_state(1, step));
    const SimulatedState expected(3, seed);
    EXPECT_EQ(read_weights(*search.newest, expected.table), expected.weights);
    EXPECT_EQ(read_shard(*search.newest, expected.table, 1, ShardVector::first_moment),
              expected.first[1]);
    EXPECT_EQ(read_shard(*search.newest, expected.table, 1, ShardVector::second_moment),
              expected.second[1]);
  }
  std::vector<std::int64_t> steps() const {
    comm_.barrier();
    std::vector<std::int64_t> found;
    for (const CheckpointDirectory& directory : list_checkpoint_directories(root_.path())) {
      found.push_back(directory.step);
    }
    comm_.barrier();
    return found;
  }

  const Communicator& comm_ = test_world();
  SharedDirectory root_{comm_, "jforge-writer"};
  MemoryAccount account_{"writer test"};
  Rank last_ = comm_.size() - 1;
};

TEST_F(CheckpointWriterTest, SavesWhatWasThereAtTheCall) {
  CheckpointWriter writer(comm_, root_.path(), {}, account_);
  SimulatedState state(comm_.size(), 4);
  writer.save(training_state(1, 10), view(state));
  // The file must hold the call's values (fault "async save wrote later values").
  std::fill(state.weights.begin(), state.weights.end(), -1.0F);
  for (auto& moments : {&state.first, &state.second}) {
    for (auto& shard : *moments) {
      std::fill(shard.begin(), shard.end(), -1.0F);
    }
  }
  writer.finish();
  expect_newest(10, 4);
  EXPECT_TRUE(find_newest_checkpoint(comm_, root_.path()).skipped.empty());
}

TEST_F(CheckpointWriterTest, PollCommitsOnceAllRanksHaveWritten) {
  CheckpointWriter writer(comm_, root_.path(), {}, account_);
  EXPECT_TRUE(writer.poll());
  std::string delays;
  for (const char* place : {"data", "fsync", "rename"}) {
    delays += std::string(delays.empty() ? "" : ",") + "delay@checkpoint." + place + ":" +
              std::to_string(last_) + ":1";
  }
  arm_faults(delays, comm_.rank());
  const SimulatedState state(comm_.size(), 4);
  const auto start = std::chrono::steady_clock::now();
  writer.save(training_state(1, 10), view(state));
  // The loop waits only for the copy, not for nine seconds of delays.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(7));
  EXPECT_FALSE(writer.poll());
  EXPECT_FALSE(
      std::filesystem::exists(root_.path() / checkpoint_directory_name(1, 10) / kManifestName));
  while (!writer.poll()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  expect_newest(10, 4);
}

TEST_F(CheckpointWriterTest, NothingIsCommittedWithoutPollOrFinish) {
  {
    CheckpointWriter writer(comm_, root_.path(), {}, account_);
    save(writer, 10, 4);
    writer.save(training_state(1, 20), view(SimulatedState(comm_.size(), 5)));
  }
  comm_.barrier();
  const CheckpointSearch search = find_newest_checkpoint(comm_, root_.path());
  EXPECT_EQ(search.newest->manifest.state.step, 10);
  ASSERT_EQ(search.skipped.size(), 1U);
  EXPECT_THAT(search.skipped[0], HasSubstr("round-1-step-00000020"));
  // The next attempt replaces the remains.
  CheckpointWriter writer(comm_, root_.path(), {}, account_);
  save(writer, 20, 6);
  expect_newest(20, 6);
}

TEST_F(CheckpointWriterTest, RetentionPrunesAfterTheCommit) {
  CheckpointConfig config;
  config.keep_last = 2;
  config.keep_every = 30;
  CheckpointWriter writer(comm_, root_.path(), config, account_);
  for (int step = 10; step <= 60; step += 10) {
    save(writer, step, step);
  }
  EXPECT_THAT(steps(), ElementsAre(60, 50, 30));
}

TEST_F(CheckpointWriterTest, AFailureAtAnyPlaceKeepsTheOldOne) {
  int seed = 20;
  for (const char* place :
       {"checkpoint.data", "checkpoint.fsync", "checkpoint.rename", "checkpoint.manifest"}) {
    SCOPED_TRACE(place);
    const bool manifest = std::string(place) == "checkpoint.manifest";
    CheckpointWriter writer(comm_, root_.path(), {}, account_);
    save(writer, 10, 4);
    arm_faults("throw@" + std::string(place) + ":" + std::to_string(manifest ? 0 : last_) + ":1",
               comm_.rank());
    const std::string message = message_of(ExitCode::internal, [&] { save(writer, 20, ++seed); });
    EXPECT_THAT(message, HasSubstr("rank " + std::to_string(manifest ? 0 : last_) + " ("));
    expect_newest(10, 4);
    save(writer, 20, seed);
    expect_newest(20, seed);
    comm_.barrier();
    if (comm_.rank() == 0) {
      std::filesystem::remove_all(root_.path() / checkpoint_directory_name(1, 20));
    }
    comm_.barrier();
  }
}

TEST_F(CheckpointWriterTest, AFullDiskOnOneRankIsEverybodysErrorAndTheOldOneStays) {
  CheckpointWriter writer(comm_, root_.path(), {}, account_);
  save(writer, 10, 4);
  std::optional<FileSizeLimit> limit;
  if (comm_.rank() == last_) {
    limit.emplace(8192);
  }
  const std::string message = message_of(ExitCode::environment, [&] { save(writer, 20, 5); });
  limit.reset();
  EXPECT_THAT(message, HasSubstr("rank " + std::to_string(last_) + " ("));
  EXPECT_THAT(message, HasSubstr("shard-"));
  expect_newest(10, 4);
  save(writer, 20, 5);
  expect_newest(20, 5);
}

TEST_F(CheckpointWriterTest, WhatIsNotFiniteIsNeverSaved) {
  CheckpointWriter writer(comm_, root_.path(), {}, account_);
  SimulatedState state(comm_.size(), 4);
  const auto slices = shard_slices(state.table, last_);
  state.second[static_cast<std::size_t>(last_)][static_cast<std::size_t>(slices[1].shard_begin)] =
      std::numeric_limits<float>::quiet_NaN();
  const std::string message =
      message_of(ExitCode::numerical, [&] { writer.save(training_state(1, 10), view(state)); });
  EXPECT_THAT(message,
              HasSubstr("second moment of " + state.table.entries()[slices[1].entry].name));
  EXPECT_TRUE(writer.poll());
  EXPECT_FALSE(find_newest_checkpoint(comm_, root_.path()).newest.has_value());
}

TEST_F(CheckpointWriterTest, OneValueThatIsNotFiniteIsFoundWhereverItStands) {
  CheckpointWriter writer(comm_, root_.path(), {}, account_);
  SimulatedState state(comm_.size(), 4);
  const auto slices = shard_slices(state.table, last_);
  const ShardSlice& longest = *std::max_element(
      slices.begin(), slices.end(),
      [](const ShardSlice& a, const ShardSlice& b) { return a.size() < b.size(); });
  // At both ends and around the borders of vectors.
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{1}, std::int64_t{4}, std::int64_t{19},
                                longest.size() / 2, longest.size() - 1}) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      float& value = state.weights[static_cast<std::size_t>(longest.flat_begin + at)];
      const float kept = std::exchange(value, bad);
      EXPECT_THAT(
          message_of(ExitCode::numerical, [&] { writer.save(training_state(1, 10), view(state)); }),
          HasSubstr("weight of " + state.table.entries()[longest.entry].name))
          << at;
      value = kept;
    }
  }
  writer.save(training_state(1, 10), view(state));
  writer.finish();
  expect_newest(10, 4);
}

TEST_F(CheckpointWriterTest, AValidCheckpointIsNotWrittenTwiceAndADamagedOneIsReplaced) {
  CheckpointWriter writer(comm_, root_.path(), {}, account_);
  save(writer, 10, 4);
  save(writer, 10, 5);
  expect_newest(10, 4);
  comm_.barrier();
  if (comm_.rank() == 0) {
    flip_byte(
        root_.path() / checkpoint_directory_name(1, 10) / shard_file_name(last_, comm_.size()),
        3000);
  }
  comm_.barrier();
  save(writer, 10, 5);
  expect_newest(10, 5);
  CheckpointState other = training_state(1, 10);
  other.identity["model"] = "another";
  EXPECT_THAT(message_of(ExitCode::usage,
                         [&] { writer.save(other, view(SimulatedState(comm_.size(), 4))); }),
              HasSubstr("valid checkpoint of another run"));
}

TEST_F(CheckpointWriterTest, CollectiveAndLocalSearchAgree) {
  CheckpointWriter writer(comm_, root_.path(), {}, account_);
  save(writer, 10, 4);
  save(writer, 20, 5);
  comm_.barrier();
  if (comm_.rank() == 0) {
    flip_byte(
        root_.path() / checkpoint_directory_name(1, 20) / shard_file_name(last_, comm_.size()),
        3000);
  }
  comm_.barrier();
  const CheckpointSearch together = find_newest_checkpoint(comm_, root_.path());
  const CheckpointSearch alone = find_newest_checkpoint(root_.path());
  EXPECT_EQ(together.newest->manifest, alone.newest->manifest);
  EXPECT_EQ(together.skipped, alone.skipped);
  EXPECT_EQ(together.newest->manifest.state.step, 10);
  EXPECT_THAT(message_of(ExitCode::input_data,
                         [&] {
                           static_cast<void>(open_checkpoint(
                               comm_, root_.path() / checkpoint_directory_name(1, 20)));
                         }),
              HasSubstr("not a valid checkpoint"));
}

TEST_F(CheckpointWriterTest, MemoryComesBack) {
  {
    CheckpointWriter writer(comm_, root_.path(), {}, account_);
    save(writer, 10, 4);
    EXPECT_GT(account_.live_bytes(), 0U);
  }
  EXPECT_EQ(account_.live_bytes(), 0U);
}

}  // namespace
}  // namespace jforge
