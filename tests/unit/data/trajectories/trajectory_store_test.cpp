#include "data/trajectories/trajectory_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "data/trajectories/trajectory_digest.h"
#include "data/trajectories/trajectory_writer.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/random.h"
#include "runtime/read_file.h"
#include "runtime/text_seal.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr std::int32_t kBlock = 4;

Trajectory make_trajectory(PromptId id, bool selected = false) {
  RandomStream stream(5, RandomPurpose::test, 0, static_cast<std::uint64_t>(id));
  Trajectory trajectory;
  trajectory.prompt_id = id;
  trajectory.block_size = kBlock;
  trajectory.forwards = static_cast<std::int64_t>(stream.below(100));
  trajectory.flipped_blocks = id % 2;
  for (std::uint64_t i = 0, count = 1 + stream.below(9); i < count; ++i) {
    trajectory.prompt.push_back(static_cast<TokenId>(stream.below(1000)));
  }
  for (std::uint64_t b = 0, count = stream.below(5); b < count; ++b) {
    TrajectoryBlock& block = trajectory.blocks.emplace_back();
    const std::uint64_t states = selected ? 2 : 1 + stream.below(4);
    for (std::uint64_t i = 0; i < states * kBlock; ++i) {
      block.states.push_back(static_cast<TokenId>(stream.below(1000)));
    }
    block.states_seen = static_cast<std::int32_t>(states) + (selected ? 3 : 0);
    block.selected_state = selected ? static_cast<std::int32_t>(stream.below(4)) : -1;
  }
  if (!trajectory.blocks.empty() && id % 3 == 0) {
    trajectory.stop = StopReason::eos;
    trajectory.eos_position = 2;
  }
  return trajectory;
}

ShardIdentity shard_of(LeaseId lease, std::vector<PromptId> ids, std::int32_t attempt = 1,
                       std::int64_t round = 1) {
  return {.lease = lease,
          .attempt = attempt,
          .rank = 3,
          .round = round,
          .block_size = kBlock,
          .prompt_ids = std::move(ids),
          .identity = "0123456789abcdef"};
}

class TrajectoryStoreTest : public testing::Test {
 protected:
  fs::path write_shard(LeaseId lease, const std::vector<PromptId>& ids, bool selected = false,
                       const fs::path& sub = "", std::int64_t round = 1) {
    const fs::path directory = directory_ / sub;
    fs::create_directories(directory);
    TrajectoryWriter writer(directory, shard_of(lease, ids, 1, round));
    for (const PromptId id : ids) {
      writer.append(make_trajectory(id, selected));
    }
    static_cast<void>(writer.finish());
    commit_shard(directory, lease, 1, 3);
    return committed_shard_path(directory, lease);
  }

  static void put(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  test::TemporaryDirectory scratch_;
  const fs::path directory_ = scratch_.path();
};

TEST_F(TrajectoryStoreTest, RoundTripOfBothForms) {
  for (const bool selected : {false, true}) {
    const fs::path sub = selected ? "selected" : "all";
    std::vector<PromptId> ids;
    for (PromptId id = 40; id > 0; --id) {
      ids.push_back(id);
    }
    const TrajectoryReader reader(write_shard(12, ids, selected, sub));
    EXPECT_EQ(reader.path().filename(), "lease-00000012.h5");
    EXPECT_EQ(reader.identity().rank, 3);
    EXPECT_EQ(reader.identity().identity, "0123456789abcdef");
    EXPECT_EQ(reader.prompt_ids(), ids);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(canonical_bytes(reader.read(i)),
                canonical_bytes(make_trajectory(ids[i], selected)));
    }
    EXPECT_NO_THROW(reader.verify());
  }
}

TEST_F(TrajectoryStoreTest, AnIndexMakesTheSameStoreWithoutOpeningAShard) {
  write_shard(0, {5, 1, 9});
  write_shard(7, {2, 3});
  const TrajectoryStore store = TrajectoryStore::open(directory_);
  EXPECT_EQ(store.files_opened(), 2);
  const std::string index = store.index();
  const TrajectoryStore copy = TrajectoryStore::from_index(directory_, index);
  EXPECT_EQ(copy.files_opened(), 0);
  EXPECT_EQ(copy.prompt_ids(), store.prompt_ids());
  EXPECT_EQ(copy.store_digest(), store.store_digest());
  EXPECT_EQ(copy.next_lease(), store.next_lease());
  EXPECT_EQ(copy.totals(), store.totals());
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(copy.shards()[i].path, store.shards()[i].path);
    EXPECT_EQ(copy.shards()[i].packed_lengths, store.shards()[i].packed_lengths);
    EXPECT_EQ(copy.shards()[i].identity.identity, "0123456789abcdef");
    EXPECT_EQ(copy.shards()[i].identity.prompt_ids, store.shards()[i].identity.prompt_ids);
  }
  EXPECT_EQ(canonical_bytes(copy.read(9)), canonical_bytes(make_trajectory(9)));
  EXPECT_EQ(copy.files_opened(), 1);
  for (std::size_t size = 0; size < index.size(); ++size) {
    EXPECT_THROW((void)TrajectoryStore::from_index(directory_, index.substr(0, size)),
                 InternalError);
  }
}

TEST_F(TrajectoryStoreTest, AShardThatIsListedLateIsWaitedFor) {
  const std::vector<PromptId> expected{1, 2, 3};
  write_shard(0, {2, 1});
  EXPECT_THAT(test::message_of<DataError>(
                  [&] { return TrajectoryStore::open_complete(directory_, expected, 0.3); }),
              HasSubstr("prompt 3 has no trajectory in " + directory_.string()))
      << "prompt 3 is not there";
  std::thread other_host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    write_shard(1, {3, 4});
  });
  const auto store = TrajectoryStore::open_complete(directory_, expected, 60);
  other_host.join();
  EXPECT_EQ(store.prompt_ids(), (std::vector<PromptId>{1, 2, 3, 4}));
  EXPECT_EQ(store.next_lease(), 2);
  EXPECT_EQ(store.shards().size(), 2U);
}

TEST_F(TrajectoryStoreTest, HoldsExactlyTheShardsNamed) {
  const fs::path first = write_shard(0, {2, 1});
  const fs::path second = write_shard(1, {3});
  write_shard(2, {4});
  const auto store =
      TrajectoryStore::of({TrajectoryReader(second).info(), TrajectoryReader(first).info()});
  EXPECT_EQ(store.prompt_ids(), (std::vector<PromptId>{1, 2, 3}));
  EXPECT_EQ(store.shards().front().path, second);
  EXPECT_EQ(store.next_lease(), 2);
  EXPECT_EQ(store.files_opened(), 0);
}

TEST_F(TrajectoryStoreTest, WhatIsRememberedIsNotOpened) {
  const std::vector<PromptId> expected{1, 2, 3, 4, 5};
  for (LeaseId lease = 0; lease < 2; ++lease) {
    const ShardInfo found =
        TrajectoryReader(write_shard(lease, {lease + 3, lease + 1}, lease == 1)).info();
    ShardIndexLog(directory_, static_cast<Rank>(lease)).append(found);
    EXPECT_EQ(ShardIndex::read(directory_).find(found.path), found);
  }
  write_shard(2, {5});  // not remembered, as after a kill
  const auto store = TrajectoryStore::open_complete(directory_, expected);
  EXPECT_EQ(store.files_opened(), 1);
  EXPECT_EQ(store.store_digest(), TrajectoryStore::open(directory_).store_digest());
  for (const PromptId id : expected) {
    EXPECT_EQ(canonical_bytes(store.read(id)), canonical_bytes(make_trajectory(id, id % 2 == 0)));
  }
  EXPECT_EQ(store.files_opened(), 4);
}

TEST_F(TrajectoryStoreTest, AWriterTellsWhatAReaderFinds) {
  TrajectoryWriter writer(directory_, shard_of(4, {9, 6, 7}));
  for (const PromptId id : {6, 7, 9}) {
    writer.append(make_trajectory(id));
  }
  static_cast<void>(writer.finish());
  commit_shard(directory_, 4, 1, 3);
  EXPECT_EQ(writer.info(), TrajectoryReader(committed_shard_path(directory_, 4)).info());
}

TEST_F(TrajectoryStoreTest, AShardThatHasChangedIsNotRemembered) {
  const fs::path path = write_shard(0, {1, 2});
  ShardIndexLog(directory_, 0).append(TrajectoryReader(path).info());
  ASSERT_TRUE(ShardIndex::read(directory_).find(path));
  // Only the bytes differ, as in a restored backup.
  std::string bytes = read_file(path);
  const auto modified = fs::last_write_time(path);
  bytes[bytes.size() / 2] ^= 1;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // file systems' clocks are coarse
  put(path, bytes);
  fs::last_write_time(path, modified);
  EXPECT_FALSE(ShardIndex::read(directory_).find(path));
  EXPECT_THROW((void)TrajectoryStore::open_complete(directory_, std::vector<PromptId>{1}, 0),
               DataError);
  fs::remove(path);
  EXPECT_FALSE(ShardIndex::read(directory_).find(path));
}

TEST_F(TrajectoryStoreTest, EveryByteIsCheckedBeforeARememberedShardIsRead) {
  const fs::path path = write_shard(0, {1, 2});
  const ShardInfo found = TrajectoryReader(path).info();
  ShardIndexLog(directory_, 0).append(found);
  const auto store = TrajectoryStore::of({found});
  std::string bytes = read_file(path);
  bytes[bytes.size() / 2] ^= 1;
  put(path, bytes);
  EXPECT_THROW((void)store.read(1), DataError);
  // The next start reads all shards.
  EXPECT_TRUE(ShardIndex::files(directory_).empty());
  fs::remove(path);
  write_shard(0, {1, 3});
  EXPECT_THROW((void)TrajectoryStore::of({found}).read(1), DataError);
}

TEST_F(TrajectoryStoreTest, ADamagedIndexIsNamedAndItsShardsAreReadAgain) {
  const std::vector<PromptId> expected{1, 2, 3};
  std::vector<fs::path> shards;
  {
    ShardIndexLog log(directory_, 0);
    for (LeaseId lease = 0; lease < 3; ++lease) {
      shards.push_back(write_shard(lease, {lease + 1}));
      log.append(TrajectoryReader(shards.back()).info());
    }
  }
  const fs::path path = directory_ / "index-0.jsonl";
  ASSERT_EQ(ShardIndex::files(directory_), std::vector<fs::path>{path});
  const std::string whole = read_file(path);
  RandomStream stream(5, RandomPurpose::test);
  for (int trial = 0; trial < 200; ++trial) {
    std::string bytes = whole;
    const bool flips = trial % 2 == 0;
    if (flips) {
      // Without the newline, a line counts as torn by a kill.
      bytes[stream.below(whole.size() - 1)] ^= static_cast<char>(1 << stream.below(8));
    } else {
      bytes.resize(stream.below(whole.size()));
    }
    put(path, bytes);
    const ShardIndex index = ShardIndex::read(directory_);
    EXPECT_EQ(index.damage().empty(), !flips) << trial;
    const auto store = TrajectoryStore::open_complete(directory_, expected);
    EXPECT_EQ(store.prompt_ids(), expected);
    EXPECT_GE(store.files_opened(), 1) << trial;
  }
  for (const char* foreign : {"\n", "{}\n", "null\n", "[1]\n", "\xff\xfe\n"}) {
    put(path, foreign);
    EXPECT_EQ(ShardIndex::read(directory_).damage().size(), 1U) << foreign;
    EXPECT_EQ(TrajectoryStore::open_complete(directory_, expected).files_opened(), 3);
  }
  put(path, seal_json(R"({"shard":"lease-00000000.h5","bytes":"x"})") + "\n");
  EXPECT_EQ(ShardIndex::read(directory_).damage().size(), 1U);
  // An earlier version's line.
  std::string earlier = whole.substr(0, whole.find(",\"checksum\"")) + "}";
  const std::size_t member = earlier.find("\"ended_by_eos\"");
  earlier.erase(member, earlier.find(',', member) + 1 - member);
  put(path, seal_json(earlier) + "\n");
  EXPECT_TRUE(ShardIndex::read(directory_).damage().empty());
  EXPECT_EQ(TrajectoryStore::open_complete(directory_, expected).files_opened(), 3);
  fs::remove(path);
  EXPECT_EQ(TrajectoryStore::open_complete(directory_, expected).files_opened(), 3);
}

/// Copying the directory changes every file's time.
TEST_F(TrajectoryStoreTest, AnOutdatedLineOfAnotherRankHidesNoNewerOne) {
  const fs::path shard = write_shard(0, {1});
  const ShardInfo info = TrajectoryReader(shard).info();
  ShardIndexLog(directory_, 1).append(info);
  fs::last_write_time(shard, fs::last_write_time(shard) + std::chrono::seconds(1));
  ASSERT_FALSE(ShardIndex::read(directory_).find(shard).has_value());
  ShardIndexLog(directory_, 0).append(info);
  EXPECT_TRUE(ShardIndex::read(directory_).find(shard).has_value());
  const std::vector<PromptId> expected{1};
  EXPECT_EQ(TrajectoryStore::open_complete(directory_, expected).files_opened(), 0);
}

TEST_F(TrajectoryStoreTest, CanonicalBytesAreLittleEndianAndComplete) {
  Trajectory trajectory;
  trajectory.prompt_id = 0x0102;
  trajectory.block_size = 1;
  trajectory.stop = StopReason::eos;
  trajectory.eos_position = 0;
  trajectory.forwards = 3;
  trajectory.prompt = {0x01020304};
  trajectory.blocks = {{.states = {5}, .states_seen = 2, .selected_state = -1}};
  const auto u64 = [](char low) { return std::string(1, low) + std::string(7, '\0'); };
  const std::string expected = std::string("\x02\x01\0\0\0\0\0\0", 8) + std::string("\1\0\0\0", 4) +
                               std::string(1, '\0') + u64(0) + u64(3) + u64(0) + u64(1) +
                               "\x04\x03\x02\x01" + u64(1) + std::string("\2\0\0\0", 4) +
                               "\xff\xff\xff\xff" + u64(1) + std::string("\5\0\0\0", 4);
  EXPECT_EQ(canonical_bytes(trajectory), expected);
  const std::uint64_t digest = trajectory_digest(trajectory);
  const auto changed = [&](const auto& change) {
    Trajectory other = trajectory;
    change(other);
    return trajectory_digest(other) != digest;
  };
  EXPECT_TRUE(changed([](Trajectory& t) { t.prompt_id = 1; }));
  EXPECT_TRUE(changed([](Trajectory& t) { t.forwards = 4; }));
  EXPECT_TRUE(changed([](Trajectory& t) { t.stop = StopReason::length; }));
  EXPECT_TRUE(changed([](Trajectory& t) { t.prompt.clear(); }));
  EXPECT_TRUE(changed([](Trajectory& t) { t.blocks[0].states[0] = 6; }));
  EXPECT_TRUE(changed([](Trajectory& t) { t.blocks[0].selected_state = 0; }));
}

TEST_F(TrajectoryStoreTest, DigestDoesNotDependOnLeasesOrTheirOrder) {
  write_shard(0, {5, 1, 9}, false, "one");
  write_shard(1, {2}, false, "one");
  write_shard(7, {9, 2}, false, "two");
  write_shard(3, {1}, false, "two");
  write_shard(4, {5}, false, "two");
  const auto one = TrajectoryStore::open(directory_ / "one");
  const auto two = TrajectoryStore::open(directory_ / "two");
  EXPECT_EQ(one.store_digest(), two.store_digest());
  EXPECT_EQ(two.next_lease(), 8);
  write_shard(8, {10}, false, "two");
  EXPECT_NE(one.store_digest(), TrajectoryStore::open(directory_ / "two").store_digest());
}

TEST_F(TrajectoryStoreTest, ReadsAnyPromptThroughMoreShardsThanStayOpen) {
  for (LeaseId lease = 0; lease < 40; ++lease) {
    write_shard(lease, {2 * lease, 2 * lease + 1});
  }
  put(directory_ / ".tmp-99-0-0", "unfinished");
  put(directory_ / "lease-x.h5", "not a shard name");
  const auto store = TrajectoryStore::open(directory_);
  EXPECT_EQ(store.size(), 80u);
  EXPECT_TRUE(store.damaged().empty());
  EXPECT_EQ(store.prompt_ids().back(), 79);
  for (const PromptId id : {0, 79, 40, 3, 78, 1, 0}) {
    EXPECT_EQ(canonical_bytes(store.read(id)), canonical_bytes(make_trajectory(id)));
  }
  EXPECT_FALSE(store.contains(80));
  EXPECT_THROW(static_cast<void>(store.read(80)), DataError);
  EXPECT_NO_THROW(store.verify());
}

TEST_F(TrajectoryStoreTest, TotalsAreThoseOfTheRecordsAndTakeNoFurtherReading) {
  ShardTotals expected;
  for (LeaseId lease = 0; lease < 4; ++lease) {
    write_shard(lease, {2 * lease, 2 * lease + 1});
    for (const PromptId id : {2 * lease, 2 * lease + 1}) {
      const Trajectory trajectory = make_trajectory(id);
      expected += {.block_tokens = static_cast<std::int64_t>(trajectory.blocks.size()) * kBlock,
                   .forwards = trajectory.forwards,
                   .flipped_blocks = trajectory.flipped_blocks,
                   .ended_by_eos = trajectory.stop == StopReason::eos ? 1 : 0};
    }
  }
  EXPECT_EQ(expected.flipped_blocks, 4);
  EXPECT_GT(expected.ended_by_eos, 0);
  EXPECT_LT(expected.ended_by_eos, 8);
  const auto store = TrajectoryStore::open(directory_, SealCheck::size);
  fs::remove_all(directory_);
  EXPECT_EQ(store.totals(), expected);
  EXPECT_EQ(TrajectoryStore::open(directory_).totals(), ShardTotals{});
}

TEST_F(TrajectoryStoreTest, MissingDirectoryIsAnEmptyStore) {
  const auto store = TrajectoryStore::open(directory_ / "absent");
  EXPECT_EQ(store.size(), 0u);
  EXPECT_EQ(store.next_lease(), 0);
}

TEST_F(TrajectoryStoreTest, DoubledPromptOverShardsIsRefusedByName) {
  write_shard(0, {1, 2});
  write_shard(1, {3, 2});
  EXPECT_THAT(test::message_of<DataError>([&] { return TrajectoryStore::open(directory_); }),
              testing::AllOf(HasSubstr("prompt 2"), HasSubstr("lease-00000000"),
                             HasSubstr("lease-00000001")));
}

TEST_F(TrajectoryStoreTest, ShardsOfDifferentRoundsAreNoStore) {
  write_shard(0, {1}, false, "", 1);
  write_shard(1, {2}, false, "", 2);
  EXPECT_THROW(static_cast<void>(TrajectoryStore::open(directory_)), DataError);
}

TEST_F(TrajectoryStoreTest, TruncatedAndFlippedShardsAreNamedAndNotDone) {
  write_shard(0, {1, 2, 3});
  const fs::path path = write_shard(1, {4, 5, 6});
  const std::string whole = read_file(path);
  RandomStream stream(3, RandomPurpose::test);
  const auto start = std::chrono::steady_clock::now();
  for (int trial = 0; trial < 120; ++trial) {
    std::string bytes = whole;
    if (trial % 2 == 0) {
      bytes.resize(stream.below(whole.size()));
    } else {
      bytes[stream.below(whole.size())] ^= static_cast<char>(1 << stream.below(8));
    }
    put(path, bytes);
    const auto store = TrajectoryStore::open(directory_);
    ASSERT_EQ(store.damaged().size(), 1u) << trial;
    EXPECT_THAT(store.damaged()[0].reason, HasSubstr("lease-00000001.h5"));
    EXPECT_EQ(store.prompt_ids(), (std::vector<PromptId>{1, 2, 3}));
    EXPECT_EQ(store.next_lease(), 2);
    EXPECT_THROW(store.verify(), DataError);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// Version 1 was not compressed.
TEST_F(TrajectoryStoreTest, EarlierVersionsAreReadAndLaterOnesRefused) {
  const fs::path source = write_shard(0, {1, 2, 3});
  const fs::path path = committed_shard_path(directory_, 1);
  for (const std::int64_t version : {0, 1, 2, 3}) {
    const Hdf5Reader reader(source);
    Hdf5Writer writer(path, true, version == 1 ? Hdf5Storage::plain : Hdf5Storage::compressed);
    for (const char* name : {"lease", "attempt", "rank", "round", "block_size"}) {
      writer.attribute(name, reader.integer_attribute(name));
    }
    writer.attribute("format_version", version);
    for (const char* name : {"format", "identity", "content_digest"}) {
      writer.attribute(name, reader.text_attribute(name));
    }
    for (const char* name : {"lease_prompt_ids", "record_prompt_id", "record_eos_position",
                             "record_forwards", "record_flipped_blocks", "record_digest",
                             "prompt_offset", "block_offset", "state_offset"}) {
      writer.write(name, reader.read<std::int64_t>(name));
    }
    for (const char* name : {"prompt_tokens", "state_tokens", "block_num_states",
                             "block_states_seen", "block_selected_state"}) {
      writer.write(name, reader.read<std::int32_t>(name));
    }
    writer.write("record_stop", reader.read<std::uint8_t>("record_stop"));
    writer.close();
    if (version == 1 || version == 2) {
      const TrajectoryReader read(path);
      EXPECT_NO_THROW(read.verify());
      EXPECT_EQ(read.digests(), TrajectoryReader(source).digests());
      continue;
    }
    EXPECT_THAT(test::message_of<DataError>([&] { const TrajectoryReader refused(path); }),
                HasSubstr("reads versions 1 to 2"))
        << version << " accepted";
  }
}

TEST_F(TrajectoryStoreTest, SealedButInconsistentShardsAreRefused) {
  const auto refused = [&](const std::string& dataset, const auto& values,
                           const std::string& expected) {
    const fs::path source = committed_shard_path(directory_, 0);
    if (!fs::exists(source)) {
      write_shard(0, {1, 2});
    }
    const Hdf5Reader reader(source);
    const fs::path path = directory_ / "lease-00000009.h5";
    Hdf5Writer writer(path);
    for (const char* name : {"lease", "attempt", "rank", "round", "block_size", "format_version"}) {
      writer.attribute(name, reader.integer_attribute(name));
    }
    for (const char* name : {"format", "identity", "content_digest"}) {
      writer.attribute(name, reader.text_attribute(name));
    }
    for (const char* name : {"lease_prompt_ids", "record_prompt_id", "record_eos_position",
                             "record_forwards", "record_flipped_blocks", "record_digest",
                             "prompt_offset", "block_offset", "state_offset"}) {
      if (dataset != name) {
        writer.write(name, reader.read<std::int64_t>(name));
      }
    }
    for (const char* name : {"prompt_tokens", "state_tokens", "block_num_states",
                             "block_states_seen", "block_selected_state"}) {
      if (dataset != name) {
        writer.write(name, reader.read<std::int32_t>(name));
      }
    }
    if (dataset != "record_stop") {
      writer.write("record_stop", reader.read<std::uint8_t>("record_stop"));
    }
    if (!values.empty()) {
      writer.write(dataset, values);
    }
    writer.close();
    EXPECT_THAT(test::message_of<DataError>([&] {
                  const TrajectoryReader bad(path);
                  bad.verify();
                }),
                testing::AllOf(HasSubstr("lease-00000009.h5"), HasSubstr(expected)))
        << dataset << " accepted";
  };
  using Integers = std::vector<std::int64_t>;
  refused("state_tokens", std::vector<std::int32_t>{}, "state_tokens");
  refused("record_digest", Integers{}, "record_digest");
  refused("record_digest", Integers{1, 2}, "digest");
  refused("record_prompt_id", Integers{1, 1}, "lease's prompts");
  refused("record_prompt_id", Integers{1, 3}, "lease's prompts");
  refused("record_prompt_id", Integers{1}, "differ in length");
  refused("prompt_offset", Integers{0, 1 << 20, 3}, "offsets");
  refused("prompt_offset", Integers{0, -5, 3}, "offsets");
  refused("state_offset", Integers{0, 1}, "offsets");
  refused("record_stop", std::vector<std::uint8_t>{9, 9}, "stop reason");
  refused("record_stop", std::vector<std::int32_t>{1, 1}, "element type");
  refused("record_forwards", Integers{100000, 100000}, "digest of prompt");
}

TEST_F(TrajectoryStoreTest, WriterRefusesWhatIsNotItsLease) {
  const ShardIdentity identity = shard_of(1, {1, 2}, 0);
  TrajectoryWriter writer(directory_, identity);
  writer.append(make_trajectory(1));
  EXPECT_THROW(writer.append(make_trajectory(1)), InternalError);
  EXPECT_THROW(writer.append(make_trajectory(3)), InternalError);
  Trajectory other_block = make_trajectory(2);
  other_block.block_size = 2;
  EXPECT_THROW(writer.append(other_block), InternalError);
  Trajectory invalid = make_trajectory(2);
  invalid.eos_position = 1 << 20;
  EXPECT_THROW(writer.append(invalid), InternalError);
  EXPECT_THROW(static_cast<void>(writer.finish()), InternalError);
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(TrajectoryStoreTest, CommitTwiceIsRefused) {
  write_shard(1, {1});
  TrajectoryWriter writer(directory_, shard_of(1, {1}, 2));
  writer.append(make_trajectory(1));
  const fs::path temporary = writer.finish();
  EXPECT_EQ(temporary.filename(), ".tmp-1-2-3-" + temporary_suffix());
  EXPECT_THROW(commit_shard(directory_, 1, 2, 3), InternalError);
}

TEST_F(TrajectoryStoreTest, UnwritableDirectoryIsAnEnvironmentError) {
  TrajectoryWriter writer(directory_ / "absent", shard_of(1, {1}, 0));
  writer.append(make_trajectory(1));
  EXPECT_THROW(static_cast<void>(writer.finish()), EnvironmentError);
}

}  // namespace
}  // namespace jforge
