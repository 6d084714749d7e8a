#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/unit/checkpoints/checkpoint_fixture.h"

namespace jforge {
namespace {

using test::simulate_checkpoint;
using test::SimulatedState;
using test::TemporaryDirectory;
using test::tiny_config;

void expect_reads_as(const Checkpoint& checkpoint, int world, int seed) {
  const SimulatedState expected(world, seed);
  for (int rank = 0; rank < world; ++rank) {
    const auto read = [&](ShardVector vector) {
      return test::read_shard(checkpoint, expected.table, rank, vector);
    };
    const std::vector<float> weights = read(ShardVector::parameter);
    EXPECT_EQ(read(ShardVector::first_moment), expected.first[static_cast<std::size_t>(rank)])
        << "rank " << rank << " of " << world;
    EXPECT_EQ(read(ShardVector::second_moment), expected.second[static_cast<std::size_t>(rank)])
        << "rank " << rank << " of " << world;
    for (const ShardGroup& group : shard_groups(expected.table, rank)) {
      for (std::int64_t i = 0; i < group.size; ++i) {
        ASSERT_EQ(weights[static_cast<std::size_t>(group.shard_begin + i)],
                  expected.weights[static_cast<std::size_t>(group.flat_begin + i)]);
      }
    }
  }
  EXPECT_EQ(test::read_weights(checkpoint, expected.table), expected.weights);
  MemoryAccount account("tensors");
  CheckpointTensors tensors(checkpoint, expected.table, account);
  for (const ParameterEntry& entry : expected.table.entries()) {
    const std::span<const float> values = tensors(entry);
    EXPECT_TRUE(
        std::ranges::equal(values, std::span(expected.weights)
                                       .subspan(static_cast<std::size_t>(entry.offset),
                                                static_cast<std::size_t>(entry.shape.elements()))))
        << entry.name;
  }
}

TEST(CheckpointReshard, AnyWorldSizeReadsAnyOther) {
  for (const int writers : {1, 2, 3, 4, 5, 7}) {
    const TemporaryDirectory root;
    const auto directory = simulate_checkpoint(root.path(), 1, 500, writers, 3);
    const Checkpoint checkpoint = open_checkpoint(directory);
    EXPECT_EQ(checkpoint.manifest.world_size, writers);
    for (const int readers : {1, 2, 3, 4, 5}) {
      SCOPED_TRACE(std::to_string(writers) + " → " + std::to_string(readers));
      expect_reads_as(checkpoint, readers, 3);
    }
  }
}

TEST(CheckpointReshard, FilesOfVersion1AreStillRead) {
  const TemporaryDirectory root;
  const auto directory = simulate_checkpoint(root.path(), 1, 500, 3, 3, "n1", 1);
  const Checkpoint checkpoint = open_checkpoint(directory);
  EXPECT_EQ(checkpoint.manifest.version, 1);
  for (const int readers : {1, 2, 3, 5}) {
    expect_reads_as(checkpoint, readers, 3);
  }
}

TEST(CheckpointReshard, SlicesOfAllShardsCoverEveryTensorOnce) {
  for (const int world : {1, 2, 3, 5, 8, 64}) {
    const ParameterTable table(tiny_config(), world);
    std::vector<int> seen(static_cast<std::size_t>(table.flat_size()), 0);
    for (int rank = 0; rank < world; ++rank) {
      for (const ShardSlice& slice : shard_slices(table, rank)) {
        for (std::int64_t i = 0; i < slice.size(); ++i) {
          ++seen[static_cast<std::size_t>(slice.flat_begin + i)];
        }
      }
    }
    std::int64_t covered = 0;
    for (const ParameterEntry& entry : table.entries()) {
      for (std::int64_t i = 0; i < entry.shape.elements(); ++i) {
        ASSERT_EQ(seen[static_cast<std::size_t>(entry.offset + i)], 1)
            << entry.name << " element " << i;
        ++covered;
      }
    }
    std::int64_t total = 0;
    for (const int count : seen) {
      total += count;
    }
    EXPECT_EQ(total, covered) << "padding belongs to a slice";
  }
}

TEST(CheckpointReshard, GroupByGroupEachRankReadsItsElementsOnceAndOpensFewFiles) {
  const TemporaryDirectory root;
  for (const int version : {1, 2}) {
    const auto directory =
        simulate_checkpoint(root.path() / std::to_string(version), 1, 5, 4, 1, "n1", version);
    const Checkpoint checkpoint = open_checkpoint(directory);
    for (const int world : {1, 2, 3, 4, 8}) {
      const SimulatedState expected(world, 1);
      std::int64_t elements = 0;
      for (int rank = 0; rank < world; ++rank) {
        SliceReader reader(checkpoint, expected.table);
        for (const ShardGroup& group : shard_groups(expected.table, rank)) {
          const ParameterTable::Range range{group.flat_begin, group.flat_begin + group.size};
          std::vector<float> part(static_cast<std::size_t>(group.size), -1.0F);
          reader.read(ShardVector::parameter, {&range, 1}, part);
          EXPECT_TRUE(
              std::equal(part.begin(), part.end(), expected.weights.begin() + group.flat_begin));
          reader.read(ShardVector::second_moment, {&range, 1}, part);
          EXPECT_TRUE(std::equal(
              part.begin(), part.end(),
              expected.second[static_cast<std::size_t>(rank)].begin() + group.shard_begin));
        }
        EXPECT_LE(reader.elements_read(), 2 * shard_vector_size(expected.table));
        EXPECT_LE(reader.files_opened(), 4);
        elements += reader.elements_read();
      }
      // All ranks together read the checkpoint once.
      EXPECT_EQ(elements, 2 * expected.table.parameter_count());
    }
  }
}

TEST(CheckpointReshard, AnyRangesOfTheFlatVector) {
  const TemporaryDirectory root;
  const Checkpoint checkpoint = open_checkpoint(simulate_checkpoint(root.path(), 1, 5, 3, 1));
  const SimulatedState expected(2, 1);
  const std::int64_t size = expected.table.flat_size();
  const std::vector<ParameterTable::Range> ranges = {
      {size - 7, size}, {0, 1}, {13, 13}, {5, size / 2}, {size / 3, size / 3 + 100}};
  std::vector<float> wanted;
  for (const ParameterTable::Range& range : ranges) {
    wanted.insert(wanted.end(), expected.weights.begin() + range.begin,
                  expected.weights.begin() + range.end);
  }
  std::vector<float> found(wanted.size(), -1.0F);
  SliceReader(checkpoint, expected.table).read(ShardVector::parameter, ranges, found);
  EXPECT_EQ(found, wanted);
}

TEST(CheckpointReshard, OpensOnlyTheFilesItNeeds) {
  const TemporaryDirectory root;
  const auto directory = simulate_checkpoint(root.path(), 1, 5, 4, 1);
  const Checkpoint checkpoint = open_checkpoint(directory);
  for (const int other : {0, 1, 3}) {  // rank 2 needs only its own file
    std::filesystem::remove(directory / shard_file_name(other, 4));
  }
  const SimulatedState expected(4, 1);
  const auto read = [&](int shard) {
    return test::read_shard(checkpoint, expected.table, shard, ShardVector::first_moment);
  };
  EXPECT_EQ(read(2), expected.first[2]);
  EXPECT_THROW(static_cast<void>(read(1)), DataError);
}

TEST(CheckpointReshard, AnotherModelIsRefusedByTensorName) {
  const TemporaryDirectory root;
  const Checkpoint checkpoint = open_checkpoint(simulate_checkpoint(root.path(), 1, 5, 2, 1));
  TransformerConfig wider = tiny_config();
  wider.intermediate_size = 48;
  const ParameterTable table(wider, 1);
  EXPECT_THAT(test::message_of<DataError>(
                  [&] { static_cast<void>(test::read_weights(checkpoint, table)); }),
              ::testing::HasSubstr("mlp.gate_proj.weight [40, 24]"))
      << "read a checkpoint of another model";
  TransformerConfig tied = tiny_config();
  tied.tie_word_embeddings = true;
  const ParameterTable smaller(tied, 1);
  EXPECT_THROW(expect_same_tensors(checkpoint, smaller), DataError);
}

}  // namespace
}  // namespace jforge
