#include "checkpoints/checkpoint_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "runtime/error.h"
#include "tests/unit/checkpoints/checkpoint_fixture.h"

namespace jforge {
namespace {

using test::SimulatedState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

CheckpointManifest example(int world) {
  const SimulatedState state(world, 1);
  CheckpointManifest manifest = test::simulate_manifest(state, 2, 750, "nonce");
  for (int rank = 0; rank < world; ++rank) {
    CheckpointShard shard{rank,
                          shard_file_name(rank, world),
                          1000U + static_cast<unsigned>(rank),
                          0xabcdef0123456789U,
                          {}};
    for (const ShardSlice& slice : shard_slices(state.table, rank)) {
      shard.slices.push_back({slice.entry, slice.tensor_begin, slice.tensor_end});
    }
    manifest.shards.push_back(std::move(shard));
  }
  return manifest;
}

std::string refusal(const std::string& text) {
  try {
    static_cast<void>(CheckpointManifest::from_json(text, "FILE"));
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("FILE"));
    return error.what();
  }
  return "accepted";
}

std::string refusal(const std::function<void(CheckpointManifest&)>& change) {
  CheckpointManifest manifest = example(3);
  change(manifest);
  return refusal(manifest.to_json());
}

TEST(CheckpointManifest, RoundTrip) {
  for (const int world : {1, 2, 5}) {
    CheckpointManifest manifest = example(world);
    manifest.state.cursors = "{\"text\": \"quotes \\\" and → unicode\"}";
    EXPECT_EQ(CheckpointManifest::from_json(manifest.to_json(), "x"), manifest);
  }
}

TEST(CheckpointManifest, Names) {
  EXPECT_EQ(checkpoint_directory_name(1, 500), "round-1-step-00000500");
  EXPECT_EQ(shard_file_name(0, 4), "shard-00000-of-00004.h5");
}

TEST(CheckpointManifest, ChecksumFindsEveryChangeOfContent) {
  const std::string text = example(2).to_json();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (std::isspace(static_cast<unsigned char>(text[i])) != 0) {
      continue;
    }
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x01);
    EXPECT_NE(refusal(damaged), "accepted") << "byte " << i << ": " << text.substr(i, 20);
  }
}

TEST(CheckpointManifest, TruncatedOrEmptyIsRefused) {
  const std::string text = example(2).to_json();
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{1}, text.size() / 2, text.size() - 3}) {
    EXPECT_NE(refusal(text.substr(0, length)), "accepted") << length;
  }
  EXPECT_THAT(refusal(std::string("{}")), HasSubstr("not a jforge-checkpoint document"));
  EXPECT_THAT(refusal(std::string("[1, 2]")), HasSubstr("not a jforge-checkpoint document"));
}

TEST(CheckpointManifest, MissingDoubledAndForeignShardsAreRefused) {
  EXPECT_THAT(refusal([](auto& m) { m.shards.pop_back(); }),
              HasSubstr("2 shards for a world of 3"));
  EXPECT_THAT(refusal([](auto& m) { m.shards[2] = m.shards[1]; }),
              HasSubstr("missing or listed twice"));
  EXPECT_THAT(refusal([](auto& m) { m.shards[1].file = shard_file_name(1, 4); }),
              HasSubstr("is called"));
  EXPECT_THAT(refusal([](auto& m) { m.shards[1].file = "../../etc/passwd"; }),
              HasSubstr("is called"));
  EXPECT_THAT(refusal([](auto& m) {
                m.world_size = 0;
                m.shards.clear();
              }),
              HasSubstr("world of 0"));
}

TEST(CheckpointManifest, SlicesMustCoverEveryTensorExactlyOnce) {
  EXPECT_THAT(refusal([](auto& m) { m.shards[1].slices.pop_back(); }),
              HasSubstr("slices of tensor"));
  EXPECT_THAT(refusal([](auto& m) { m.shards[1].slices.push_back(m.shards[0].slices[0]); }),
              HasSubstr("overlap"));
  EXPECT_THAT(refusal([](auto& m) { m.shards[2].slices.back().end += 1; }),
              HasSubstr("slices of tensor"));
  EXPECT_THAT(refusal([](auto& m) { m.shards[0].slices[0].tensor = 999; }),
              HasSubstr("does not exist"));
  EXPECT_THAT(refusal([](auto& m) { m.tensors[1].name = m.tensors[0].name; }),
              HasSubstr("listed twice"));
  EXPECT_THAT(refusal([](auto& m) {
                m.tensors[0].shape = {1LL << 40, 1LL << 40};
              }),
              HasSubstr("impossible shape"));
}

TEST(CheckpointDirectories, NewestFirstByRoundThenStep) {
  const test::TemporaryDirectory root;
  for (const char* name :
       {"round-1-step-00000500", "round-2-step-00000010", "round-1-step-00001000",
        "round-1-step-000000500", "round-x-step-00000001", "notes"}) {
    std::filesystem::create_directory(root.path() / name);
  }
  std::vector<std::string> names;
  for (const CheckpointDirectory& directory : list_checkpoint_directories(root.path())) {
    names.push_back(directory.path.filename());
  }
  EXPECT_THAT(names, ElementsAre("round-2-step-00000010", "round-1-step-00001000",
                                 "round-1-step-00000500"));
  EXPECT_TRUE(list_checkpoint_directories(root.path() / "absent").empty());
}

TEST(CheckpointDirectories, AManifestInAForeignDirectoryIsRefused) {
  const test::TemporaryDirectory root;
  const auto directory = test::simulate_checkpoint(root.path(), 1, 5, 1, 1);
  std::filesystem::rename(directory, root.path() / checkpoint_directory_name(1, 9));
  EXPECT_THROW(static_cast<void>(read_manifest(root.path() / checkpoint_directory_name(1, 9))),
               DataError);
}

}  // namespace
}  // namespace jforge
