// Damaged checkpoints are refused by name and the next older one is taken (faults 12 – 15).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "runtime/error.h"
#include "runtime/read_file.h"
#include "tests/support/message_of.h"
#include "tests/unit/checkpoints/checkpoint_fixture.h"

namespace jforge {
namespace {

using test::flip_byte;
using test::simulate_checkpoint;
using test::SimulatedState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointCorruption : public ::testing::Test {
 protected:
  void SetUp() override {
    older_ = simulate_checkpoint(root_.path(), 1, 500, 2, 5);
    newer_ = simulate_checkpoint(root_.path(), 1, 1000, 2, 6);
    shard_ = newer_ / shard_file_name(1, 2);
  }

  /// Expects a fallback to step 500, for `reason`.
  void expect_fallback(const std::string& reason) {
    const CheckpointSearch search = find_newest_checkpoint(root_.path());
    ASSERT_TRUE(search.newest.has_value());
    EXPECT_EQ(search.newest->manifest.state.step, 500);
    ASSERT_EQ(search.skipped.size(), 1U);
    EXPECT_THAT(search.skipped[0], HasSubstr("round-1-step-00001000"));
    EXPECT_THAT(search.skipped[0], HasSubstr(reason));
    EXPECT_THROW(static_cast<void>(open_checkpoint(newer_)), DataError);
  }

  test::TemporaryDirectory root_;
  std::filesystem::path older_;
  std::filesystem::path newer_;
  std::filesystem::path shard_;
};

TEST_F(CheckpointCorruption, IntactNewestIsTaken) {
  const CheckpointSearch search = find_newest_checkpoint(root_.path());
  ASSERT_TRUE(search.newest.has_value());
  EXPECT_EQ(search.newest->manifest.state, test::training_state(1, 1000));
  EXPECT_TRUE(search.skipped.empty());
}

TEST_F(CheckpointCorruption, AHigherRoundBeatsAHigherStep) {
  simulate_checkpoint(root_.path(), 2, 3, 1, 5);
  EXPECT_EQ(find_newest_checkpoint(root_.path()).newest->manifest.state.round, 2);
}

TEST_F(CheckpointCorruption, AFolderOfCheckpointsNamesTheNewest) {
  const test::TemporaryDirectory run;
  const auto folder = run.path() / "checkpoints";
  simulate_checkpoint(folder, 1, 500, 1, 5);
  const auto newest = simulate_checkpoint(folder, 2, 3, 1, 5);
  for (const auto& named : {run.path(), folder}) {
    const std::string message = test::message_of<DataError>([&] { return open_checkpoint(named); });
    EXPECT_THAT(message, testing::StartsWith(named.string() + " is not a checkpoint"));
    EXPECT_THAT(message, testing::EndsWith("such as " + newest.string()));
  }
}

TEST_F(CheckpointCorruption, AFlippedByteAnywhereIsFound) {
  const std::uint64_t size = std::filesystem::file_size(shard_);
  for (std::uint64_t i = 0; i < 40; ++i) {
    const std::uint64_t offset = i * (size - 1) / 39;
    flip_byte(shard_, offset);
    SCOPED_TRACE("offset " + std::to_string(offset));
    expect_fallback("shard-00001-of-00002.h5 is damaged or foreign");
    flip_byte(shard_, offset);
  }
  EXPECT_EQ(find_newest_checkpoint(root_.path()).newest->manifest.state.step, 1000);
}

TEST_F(CheckpointCorruption, EveryFlippedBitOfAFileIsFound) {
  // The checksum covers all bytes, also HDF5's own.
  const CheckpointShard entry = read_manifest(newer_).shards[1];
  verify_shard(newer_, entry);
  const std::string whole = read_file(shard_);
  for (std::size_t offset = 0; offset < whole.size(); offset += 97) {
    flip_byte(shard_, offset);
    EXPECT_THROW(verify_shard(newer_, entry), DataError) << "offset " << offset;
    flip_byte(shard_, offset);
  }
  verify_shard(newer_, entry);
}

TEST_F(CheckpointCorruption, AVersionThatIsNotTheManifestsIsRefused) {
  for (const int version : {1, 2}) {
    const test::TemporaryDirectory root;
    const SimulatedState state(1, 6);
    CheckpointManifest manifest = test::simulate_manifest(state, 1, 1000, "n");
    const auto directory = root.path() / checkpoint_directory_name(1, 1000);
    std::filesystem::create_directories(directory);
    manifest.version = version;
    manifest.shards = {version == 2
                           ? test::simulate_shard_of_version_1(directory, state, manifest, 0)
                           : test::simulate_shard(directory, state, manifest, 0)};
    commit_checkpoint(directory, manifest);
    EXPECT_THROW(static_cast<void>(test::read_weights(open_checkpoint(directory), state.table)),
                 DataError);
  }
}

TEST_F(CheckpointCorruption, TruncationAtAnySizeIsFound) {
  const std::uint64_t size = std::filesystem::file_size(shard_);
  for (const std::uint64_t length :
       {size - 1, size / 2, std::uint64_t{2048}, std::uint64_t{8}, std::uint64_t{0}}) {
    std::filesystem::resize_file(shard_, length);
    expect_fallback("it has " + std::to_string(length) + " bytes");
  }
}

TEST_F(CheckpointCorruption, ZeroedSuperblockIsFoundBeforeHdf5SeesIt) {
  std::fstream file(shard_, std::ios::in | std::ios::out | std::ios::binary);
  file.write(std::string(96, '\0').data(), 96);
  file.close();
  expect_fallback("its checksum is");
}

TEST_F(CheckpointCorruption, MissingShard) {
  std::filesystem::remove(shard_);
  expect_fallback("shard-00001-of-00002.h5: No such file");
}

TEST_F(CheckpointCorruption, ShardFromAnotherStep) {
  std::filesystem::copy_file(older_ / shard_file_name(1, 2), shard_,
                             std::filesystem::copy_options::overwrite_existing);
  expect_fallback("shard-00001-of-00002.h5 is damaged or foreign");
}

TEST_F(CheckpointCorruption, ShardOfAnotherRank) {
  std::filesystem::copy_file(newer_ / shard_file_name(0, 2), shard_,
                             std::filesystem::copy_options::overwrite_existing);
  expect_fallback("shard-00001-of-00002.h5 is damaged or foreign");
}

TEST_F(CheckpointCorruption, ManifestRemovedEmptiedGarbled) {
  const std::string manifest = read_file(newer_ / kManifestName);
  std::filesystem::remove(newer_ / kManifestName);
  expect_fallback("manifest.json");
  std::ofstream(newer_ / kManifestName).close();
  expect_fallback("not a valid manifest");
  std::ofstream(newer_ / kManifestName) << manifest.substr(0, manifest.size() / 2);
  expect_fallback("not a valid manifest");
  std::ofstream(newer_ / kManifestName) << std::string(3000, '\xff');
  expect_fallback("not a valid manifest");
}

TEST_F(CheckpointCorruption, EmptiedDirectory) {
  for (const auto& entry : std::filesystem::directory_iterator(newer_)) {
    std::filesystem::remove(entry.path());
  }
  expect_fallback("manifest.json");
}

TEST_F(CheckpointCorruption, NothingValidIsSaidSo) {
  std::filesystem::remove(older_ / kManifestName);
  flip_byte(shard_, 4000);
  const CheckpointSearch search = find_newest_checkpoint(root_.path());
  EXPECT_FALSE(search.newest.has_value());
  EXPECT_THAT(search.skipped,
              ElementsAre(HasSubstr("round-1-step-00001000"), HasSubstr("round-1-step-00000500")));
  EXPECT_TRUE(find_newest_checkpoint(root_.path() / "absent").skipped.empty());
}

/// A valid shard that says itself that it belongs elsewhere.
void expect_refused_by_its_own_word(const std::function<void(CheckpointManifest&)>& rename,
                                    const std::string& reason) {
  const test::TemporaryDirectory root;
  const SimulatedState state(2, 6);
  const CheckpointManifest truth = test::simulate_manifest(state, 1, 1000, "right");
  CheckpointManifest lie = truth;
  rename(lie);
  const auto directory = root.path() / checkpoint_directory_name(1, 1000);
  std::filesystem::create_directories(directory);
  CheckpointManifest manifest = truth;
  manifest.shards = {test::simulate_shard(directory, state, truth, 0),
                     test::simulate_shard(directory, state, lie, 1)};
  commit_checkpoint(directory, manifest);
  const Checkpoint checkpoint = open_checkpoint(directory);
  const std::string message = test::message_of<DataError>(
      [&] { static_cast<void>(test::read_weights(checkpoint, state.table)); });
  EXPECT_THAT(message, HasSubstr("shard-00001-of-00002.h5 is a foreign shard"))
      << "read a foreign shard";
  EXPECT_THAT(message, HasSubstr(reason));
}

TEST(CheckpointForeignShard, RefusedByItsOwnAttributes) {
  expect_refused_by_its_own_word([](auto& m) { m.state.step = 500; },
                                 "its step is 500, the manifest says 1000");
  expect_refused_by_its_own_word([](auto& m) { m.state.round = 3; }, "its round is 3");
  expect_refused_by_its_own_word([](auto& m) { m.nonce = "wrong"; }, "another run");
}

TEST(CheckpointMoments, WeightsOnlyIsReadableButNotResumable) {
  const test::TemporaryDirectory root;
  const SimulatedState state(1, 6);
  CheckpointManifest manifest = test::simulate_manifest(state, 1, 7, "n");
  manifest.has_moments = false;
  const auto directory = root.path() / checkpoint_directory_name(1, 7);
  std::filesystem::create_directories(directory);
  const auto slices = shard_slices(state.table, 0);
  std::vector<float> parameter;
  for (const ShardSlice& slice : slices) {
    parameter.insert(parameter.end(), state.weights.begin() + slice.flat_begin,
                     state.weights.begin() + slice.flat_begin + slice.size());
  }
  manifest.shards = {test::write_shard(directory, {1, 7, 1, 0, "n"}, slices, {parameter, {}, {}})};
  commit_checkpoint(directory, manifest);
  const Checkpoint checkpoint = open_checkpoint(directory);
  EXPECT_EQ(test::read_shard(checkpoint, state.table, 0, ShardVector::parameter), state.weights);
  for (const ShardVector moment : {ShardVector::first_moment, ShardVector::second_moment}) {
    EXPECT_THROW(static_cast<void>(test::read_shard(checkpoint, state.table, 0, moment)),
                 DataError);
  }
}

}  // namespace
}  // namespace jforge
