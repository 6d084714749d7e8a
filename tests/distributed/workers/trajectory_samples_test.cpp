// One rank opens the shards for the index; each reads its samples ahead of the step.

#include "workers/train/trajectory_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <set>
#include <thread>

#include "data/trajectories/trajectory_digest.h"
#include "data/trajectories/trajectory_writer.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/random.h"
#include "tests/distributed/checkpoints/shared_directory.h"
#include "tests/support/mpi_test.h"

namespace jforge {
namespace {

using namespace jforge::test;
using Clock = std::chrono::steady_clock;

constexpr std::int32_t kBlock = 4;
constexpr std::int64_t kShards = 40;  // more than a store keeps open
constexpr std::int64_t kPrompts = 4 * kShards;
constexpr std::int64_t kSteps = 20;
constexpr std::int64_t kBatch = 16;

Trajectory make_trajectory(PromptId id) {
  RandomStream stream(5, RandomPurpose::test, 0, static_cast<std::uint64_t>(id));
  Trajectory trajectory;
  trajectory.prompt_id = id;
  trajectory.block_size = kBlock;
  const auto draw = [&](std::uint64_t count, std::vector<TokenId>& tokens) {
    for (std::uint64_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<TokenId>(stream.below(1000)));
    }
  };
  draw(1 + stream.below(9), trajectory.prompt);
  for (std::uint64_t b = 0, count = 1 + stream.below(4); b < count; ++b) {
    TrajectoryBlock& block = trajectory.blocks.emplace_back();
    draw(2 * kBlock, block.states);
    if (count == 2) {
      std::ranges::fill(block.states, TokenId{7});  // repeats itself
    }
    block.states_seen = 2;
    block.selected_state = -1;
  }
  return trajectory;
}

class TrajectorySamplesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (comm_.rank() == 0) {
      for (LeaseId lease = 0; lease < kShards; ++lease) {
        std::vector<PromptId> ids;
        for (std::int64_t i = 0; i < kPrompts / kShards; ++i) {
          ids.push_back(lease + i * kShards);
        }
        TrajectoryWriter writer(root_.path(), {.lease = lease,
                                               .attempt = 1,
                                               .rank = 0,
                                               .round = 1,
                                               .block_size = kBlock,
                                               .prompt_ids = ids,
                                               .identity = "same"});
        for (const PromptId id : ids) {
          writer.append(make_trajectory(id));
        }
        static_cast<void>(writer.finish());
        commit_shard(root_.path(), lease, 1, 0);
      }
    }
    comm_.barrier();
  }
  void TearDown() override { arm_faults("", comm_.rank()); }

  std::unique_ptr<TrajectorySamples> open() {
    return std::make_unique<TrajectorySamples>(root_.path(), order_, kSteps, schedule_, comm_);
  }
  std::vector<std::int64_t> mine(const TrajectorySamples& samples, std::int64_t step) const {
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = 0; i < kBatch; ++i) {
      lengths.push_back(samples.length(step * kBatch + i));
    }
    BatchDivision division;
    division.assign_to_ranks(lengths, comm_.size());
    std::vector<std::int64_t> indices;
    for (const std::size_t member : division.lists()[static_cast<std::size_t>(comm_.rank())]) {
      indices.push_back(step * kBatch + static_cast<std::int64_t>(member));
    }
    return indices;
  }
  PackedSample expected(std::int64_t index) const {
    return make_packed_sample(make_trajectory(SampleOrder(order_).at(index)), schedule_);
  }
  void expect_sample(TrajectorySamples& samples, std::int64_t index) const {
    const TrainingSample sample = samples.sample(index);
    const PackedSample& found = std::get<PackedSample>(sample);
    const PackedSample wanted = expected(index);
    EXPECT_EQ(found.prompt_id, wanted.prompt_id);
    EXPECT_EQ(found.prompt, wanted.prompt);
    EXPECT_EQ(found.clean, wanted.clean);
    EXPECT_EQ(found.noisy, wanted.noisy);
  }

  const Communicator& comm_ = test_world();
  SharedDirectory root_{comm_, "jforge-samples"};
  SampleOrderOptions order_{7, 1, kPrompts, kBatch};
  NoiseScheduleOptions schedule_{.window = 2, .seed = 7, .round = 1};
};

TEST_F(TrajectorySamplesTest, OneRankOpensTheShardsForTheirIndex) {
  const auto samples = open();
  EXPECT_EQ(samples->files_opened(), comm_.rank() == 0 ? kShards : 0);
  EXPECT_EQ(samples->size(), kSteps * kBatch);
}

TEST_F(TrajectorySamplesTest, TheSameSamplesInWhateverOrderTheyAreAskedFor) {
  const auto samples = open();
  for (std::int64_t step = 0; step < kSteps; ++step) {
    for (const std::int64_t index : mine(*samples, step)) {
      expect_sample(*samples, index);
    }
  }
  // A resumed run starts in the middle; another division asks for other ranks' samples, or twice.
  const auto resumed = open();
  for (const std::int64_t step : {std::int64_t{11}, std::int64_t{12}, std::int64_t{3}}) {
    for (std::int64_t i = 0; i < kBatch; ++i) {
      expect_sample(*resumed, step * kBatch + i);
      expect_sample(*resumed, step * kBatch + i);
    }
  }
}

TEST_F(TrajectorySamplesTest, WhatIsCleanedAwayIsPassedOverOnEveryRank) {
  TrajectorySamples::Cleaning cleaning;
  cleaning.config.max_repetition = 0.5;
  const TrajectorySamples samples(root_.path(), order_, kSteps, schedule_, comm_, cleaning);
  const auto keeps = [](PromptId id) { return make_trajectory(id).blocks.size() != 2; };
  std::int64_t kept = 0;
  for (PromptId id = 0; id < kPrompts; ++id) {
    kept += keeps(id) ? 1 : 0;
  }
  ASSERT_GT(kept, kPrompts / 4);
  ASSERT_LT(kept, kPrompts);
  ASSERT_TRUE(samples.cleaned().has_value());
  EXPECT_EQ(samples.cleaned()->front(), kept);
  EXPECT_EQ(samples.cleaned()->at(static_cast<std::size_t>(FilterVerdict::repetition)),
            kPrompts - kept);
  EXPECT_EQ(samples.size(), kSteps * kBatch);
  const SampleOrder order(order_);
  std::int64_t place = -1;
  for (std::int64_t index = 0; index < samples.size(); ++index) {
    do {
      ++place;
    } while (!keeps(order.at(place)));
    EXPECT_EQ(samples.length(index),
              make_packed_sample(make_trajectory(order.at(place)), schedule_).packed_length());
  }
  EXPECT_GT(place, kSteps * kBatch) << "nothing was passed over";
  // Without removals nothing changes; with no sample left it is an error.
  cleaning.config = {};
  cleaning.config.max_repetition = 0.99;
  TrajectorySamples whole(root_.path(), order_, kSteps, schedule_, comm_, cleaning);
  EXPECT_EQ(whole.cleaned()->front(), kPrompts);
  expect_sample(whole, 3 * kBatch + 1);
  cleaning.config.max_repetition = 1;
  cleaning.config.require_eos = true;
  EXPECT_THAT(
      [&] { TrajectorySamples(root_.path(), order_, kSteps, schedule_, comm_, cleaning); },
      testing::ThrowsMessage<DataError>(testing::HasSubstr(
          "leaves none of the round's 160 trajectories to train on (no end of sequence 160)")));
}

TEST_F(TrajectorySamplesTest, AStepOpensEachOfItsShardsOnceAtMost) {
  const auto samples = open();
  for (std::int64_t step = 0; step < kSteps; ++step) {
    for (const std::int64_t index : mine(*samples, step)) {
      static_cast<void>(samples->sample(index));
    }
  }
  std::int64_t shards = 0;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    std::set<std::int64_t> of_step;
    for (const std::int64_t index : mine(*samples, step)) {
      of_step.insert(SampleOrder(order_).at(index) % kShards);
    }
    shards += static_cast<std::int64_t>(of_step.size());
  }
  EXPECT_LE(samples->files_opened() - (comm_.rank() == 0 ? kShards : 0), shards);
}

TEST_F(TrajectorySamplesTest, ASlowOpenIsHiddenBehindTheStepBefore) {
  // After the second of two steps nothing is read ahead.
  TrajectorySamples samples(root_.path(), order_, 2, schedule_, comm_);
  // Step 0's shards open at once; step 1's first one takes three seconds.
  const SampleOrder order(order_);
  std::set<std::int64_t> first;
  for (const std::int64_t index : mine(samples, 0)) {
    first.insert(order.at(index) % kShards);
  }
  std::set<std::int64_t> both = first;
  for (const std::int64_t index : mine(samples, 1)) {
    both.insert(order.at(index) % kShards);
  }
  ASSERT_GT(both.size(), first.size());
  const std::int64_t all = samples.files_opened() + std::ssize(both);
  arm_faults("delay@trajectories.open:" + std::to_string(comm_.rank()) + ":" +
                 std::to_string(first.size() + 1),
             comm_.rank());
  for (const std::int64_t index : mine(samples, 0)) {
    expect_sample(samples, index);
  }
  // Meanwhile the step computes.
  const auto limit = Clock::now() + std::chrono::seconds(100);
  while (samples.files_opened() < all && Clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(samples.files_opened(), all) << "not without being asked";
  EXPECT_FALSE(faults_armed()) << "the fault has not acted: nothing was slow";
  for (const std::int64_t index : mine(samples, 1)) {
    expect_sample(samples, index);
  }
  EXPECT_EQ(samples.files_opened(), all);
}

TEST_F(TrajectorySamplesTest, WhatCannotBeReadFailsInTheStepThatNeedsIt) {
  const auto samples = open();
  const std::int64_t lost = SampleOrder(order_).at(2 * kBatch) % kShards;
  comm_.barrier();
  if (comm_.rank() == 0) {
    std::filesystem::remove(committed_shard_path(root_.path(), lost));
  }
  comm_.barrier();
  for (const std::int64_t step : {0, 1, 2}) {
    for (const std::int64_t index : mine(*samples, step)) {
      if (SampleOrder(order_).at(index) % kShards == lost) {
        EXPECT_THROW(static_cast<void>(samples->sample(index)), Error) << step;
      } else {
        expect_sample(*samples, index);
      }
    }
  }
}

}  // namespace
}  // namespace jforge
