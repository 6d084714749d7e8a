#include "runtime/comm/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "runtime/error.h"
#include "tests/distributed/comm/collective_values.h"
#include "tests/support/mpi_test.h"

namespace jforge {
namespace {

using test::expected_sum;
using test::same_bits;
using test::test_world;
using test::values_of;

// Empty, one, around the small path's border, over one piece, several pieces and a rest.
constexpr std::size_t kMegabyte = std::size_t{1} << 20;
template <class T>
std::vector<std::size_t> sizes() {
  const std::size_t piece = kMegabyte / sizeof(T);
  return {
      0, 1, 3, 5, 4096 / sizeof(T), 4096 / sizeof(T) + 1, 10007, piece, piece + 1, 3 * piece + 17};
}

/// Copies are cut at 16 MiB: one type also crosses that border, with a rest.
template <class T>
std::vector<std::size_t> sizes_of_copies() {
  auto counts = sizes<T>();
  if constexpr (std::is_same_v<T, float>) {
    counts.push_back(17 * kMegabyte / sizeof(T) + 3);
  }
  return counts;
}

template <class T>
class Collectives : public ::testing::Test {};
using ElementTypes = ::testing::Types<float, double, std::int32_t, std::int64_t, std::uint8_t>;
TYPED_TEST_SUITE(Collectives, ElementTypes);

TYPED_TEST(Collectives, AllReduceSumAddsInRankOrder) {
  using T = TypeParam;
  const Communicator& world = test_world();
  for (const std::size_t count : sizes<T>()) {
    auto values = values_of<T>(world.rank(), count);
    all_reduce_sum<T>(world, values);
    EXPECT_TRUE(same_bits<T>(values, expected_sum<T>(world.size(), count))) << count;
  }
}

TYPED_TEST(Collectives, AllReduceMax) {
  using T = TypeParam;
  const Communicator& world = test_world();
  for (const std::size_t count : sizes<T>()) {
    auto values = values_of<T>(world.rank(), count);
    auto wanted = values_of<T>(0, count);
    for (Rank rank = 1; rank < world.size(); ++rank) {
      const auto other = values_of<T>(rank, count);
      for (std::size_t i = 0; i < count; ++i) {
        wanted[i] = std::max(wanted[i], other[i]);
      }
    }
    all_reduce_max<T>(world, values);
    EXPECT_TRUE(same_bits<T>(values, wanted)) << count;
  }
}

TYPED_TEST(Collectives, ReduceScatterGivesEachRankItsBlock) {
  using T = TypeParam;
  const Communicator& world = test_world();
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto me = static_cast<std::size_t>(world.rank());
  for (const std::size_t count : sizes<T>()) {
    const auto untouched = values_of<T>(world.rank(), count * ranks);
    auto input = untouched;
    std::vector<T> output(count);
    reduce_scatter_sum<T>(world, input, output);
    const auto sum = expected_sum<T>(world.size(), count * ranks);
    const auto wanted = std::span(sum).subspan(me * count, count);
    EXPECT_TRUE(same_bits<T>(output, wanted)) << count;
    EXPECT_TRUE(same_bits<T>(input, untouched)) << count;

    reduce_scatter_sum<T>(world, input, std::span(input).subspan(me * count, count));
    EXPECT_TRUE(same_bits<T>(std::span(input).subspan(me * count, count), wanted))
        << "in place, " << count;
  }
}

TYPED_TEST(Collectives, AllGatherKeepsRankOrder) {
  using T = TypeParam;
  const Communicator& world = test_world();
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto me = static_cast<std::size_t>(world.rank());
  const auto counts = sizes_of_copies<T>();
  for (const std::size_t count : counts) {
    std::vector<T> wanted;
    for (Rank rank = 0; rank < world.size(); ++rank) {
      const auto values = values_of<T>(rank, count);
      wanted.insert(wanted.end(), values.begin(), values.end());
    }
    const auto input = values_of<T>(world.rank(), count);
    std::vector<T> output(count * ranks);
    all_gather<T>(world, input, output);
    EXPECT_TRUE(same_bits<T>(output, wanted)) << count;

    std::vector<T> in_place(count * ranks);
    std::copy(input.begin(), input.end(),
              in_place.begin() + static_cast<std::ptrdiff_t>(me * count));
    all_gather<T>(world, std::span<const T>(in_place).subspan(me * count, count), in_place);
    EXPECT_TRUE(same_bits<T>(in_place, wanted)) << "in place, " << count;
  }
}

TYPED_TEST(Collectives, BroadcastFromEveryRoot) {
  using T = TypeParam;
  const Communicator& world = test_world();
  const auto counts = sizes_of_copies<T>();
  for (const std::size_t count : counts) {
    for (Rank root = 0; root < world.size(); ++root) {
      auto values = values_of<T>(world.rank(), count);
      broadcast<T>(world, values, root);
      EXPECT_TRUE(same_bits<T>(values, values_of<T>(root, count))) << count << " from " << root;
    }
  }
}

TEST(CollectiveResults, AllReduceEqualsReduceScatterAndAllGatherBitForBit) {
  const Communicator& world = test_world();
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::size_t count = 300'001;
  auto reduced = values_of<float>(world.rank(), count * ranks);
  auto input = reduced;
  all_reduce_sum<float>(world, reduced);
  std::vector<float> block(count);
  std::vector<float> gathered(count * ranks);
  reduce_scatter_sum<float>(world, input, block);
  all_gather<float>(world, block, gathered);
  EXPECT_TRUE(same_bits<float>(gathered, reduced));
}

TEST(CollectiveResults, MaximumOfNanIsNanOnAllRanks) {
  const Communicator& world = test_world();
  for (Rank bad = 0; bad < world.size(); ++bad) {
    std::vector<float> values(3, static_cast<float>(world.rank()));
    if (world.rank() == bad) {
      values[1] = std::numeric_limits<float>::quiet_NaN();
    }
    all_reduce_max<float>(world, values);
    EXPECT_EQ(values[0], static_cast<float>(world.size() - 1));
    EXPECT_TRUE(std::isnan(values[1])) << "NaN on rank " << bad;
  }
}

TEST(CollectiveResults, RepeatedOverManyRoundsWithoutMixing) {
  const Communicator& world = test_world();
  for (std::uint64_t round = 0; round < 200; ++round) {
    const std::size_t count = 1 + round * 37;
    auto values = values_of<float>(world.rank(), count, round);
    all_reduce_sum<float>(world, values);
    ASSERT_TRUE(same_bits<float>(values, expected_sum<float>(world.size(), count, round))) << round;
  }
}

TEST(CollectiveResults, WrongSizesAreRefusedBeforeAnythingIsSent) {
  const Communicator& world = test_world();
  std::vector<float> input(static_cast<std::size_t>(world.size()) * 4 + 1);
  std::vector<float> output(4);
  EXPECT_THROW(reduce_scatter_sum<float>(world, input, output), InternalError);
  EXPECT_THROW(all_gather<float>(world, output, input), InternalError);
  EXPECT_THROW(broadcast<float>(world, output, world.size()), InternalError);
  EXPECT_THROW(broadcast<float>(world, output, -1), InternalError);
}

TEST(CollectiveResults, BytesAreCounted) {
  const Communicator& world = test_world();
  const auto ranks = static_cast<std::size_t>(world.size());
  const CollectiveBytes before = collective_bytes();
  std::vector<float> whole(ranks * 10);
  std::vector<float> block(10);
  all_reduce_sum<float>(world, whole);
  reduce_scatter_sum<float>(world, whole, block);
  all_gather<float>(world, block, whole);
  broadcast<float>(world, block, 0);
  const CollectiveBytes after = collective_bytes();
  EXPECT_EQ(after.all_reduce - before.all_reduce, 40 * ranks);
  EXPECT_EQ(after.reduce_scatter - before.reduce_scatter, 40 * ranks);
  EXPECT_EQ(after.all_gather - before.all_gather, 40U);
  EXPECT_EQ(after.broadcast - before.broadcast, world.rank() == 0 ? 40U : 0U);
}

double processor_seconds() {
  timespec time{};
  EXPECT_EQ(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time), 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// With OMP_WAIT_POLICY=passive a waiting rank leaves its core to others, also in a duplicate.
TEST(Waits, TakeNoProcessorTimeWhereTheyArePassive) {
  const Communicator& world = test_world();
  const char* const policy = std::getenv("OMP_WAIT_POLICY");
  const std::string wanted = broadcast_text(world, policy == nullptr ? "" : policy, 0);
  if (wanted != "passive") {
    GTEST_SKIP() << "OMP_WAIT_POLICY is not passive";
  }
  Communicator duplicate = world.duplicate();
  const std::vector<std::function<void(const Communicator&)>> collectives = {
      [](const Communicator& comm) { comm.barrier(); },
      [](const Communicator& comm) {
        std::vector<float> values(100, 1);
        all_reduce_sum<float>(comm, values);
      },
      [](const Communicator& comm) {
        std::vector<float> all(static_cast<std::size_t>(comm.size()));
        all_gather<float>(comm, std::vector<float>(1, 1), all);
      },
      [](const Communicator& comm) {
        std::vector<float> values(100, 1);
        broadcast<float>(comm, values, comm.size() - 1);
      },
  };
  constexpr double kSeconds = 0.4;
  for (const Communicator* comm : {&world, static_cast<const Communicator*>(&duplicate)}) {
    for (std::size_t i = 0; i < collectives.size(); ++i) {
      const bool last = comm->rank() == comm->size() - 1;
      if (last) {
        std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
      }
      const double begin = processor_seconds();
      collectives[i](*comm);
      if (!last) {
        EXPECT_LT(processor_seconds() - begin, kSeconds / 2) << i;
      }
    }
  }
  duplicate.close();
}

TEST(Texts, BroadcastFromEveryRoot) {
  const Communicator& world = test_world();
  for (Rank root = 0; root < world.size(); ++root) {
    const std::string mine = "text of rank " + std::to_string(world.rank());
    EXPECT_EQ(broadcast_text(world, mine, root), "text of rank " + std::to_string(root));
  }
  EXPECT_EQ(broadcast_text(world, world.rank() == 0 ? "" : "ignored", 0), "");
  const std::string long_text = std::string(3'000'001, 'x') + std::string("\0\xff", 2);
  EXPECT_EQ(broadcast_text(world, world.rank() == 0 ? long_text : "short", 0), long_text);
}

TEST(Texts, GatherAtEveryRoot) {
  const Communicator& world = test_world();
  const auto text_of = [](Rank rank) {
    return std::string(static_cast<std::size_t>(rank) * 100'003, 'a');
  };
  for (Rank root = 0; root < world.size(); ++root) {
    const auto texts = gather_texts(world, text_of(world.rank()), root);
    if (world.rank() != root) {
      EXPECT_TRUE(texts.empty());
      continue;
    }
    ASSERT_EQ(texts.size(), static_cast<std::size_t>(world.size()));
    for (Rank rank = 0; rank < world.size(); ++rank) {
      EXPECT_EQ(texts[static_cast<std::size_t>(rank)], text_of(rank));
    }
  }
}

}  // namespace
}  // namespace jforge
