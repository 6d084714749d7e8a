// Virtual ranks: everything that takes a communicator, on 1 to 64 threads of this process.

#include "tests/support/virtual_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/local_rank.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/error.h"
#include "tests/distributed/comm/tensor_collective_cases.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

using namespace jforge::test;
using ::testing::HasSubstr;

class VirtualRanks : public ::testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(const Communicator&)>& work) {
    VirtualWorld(GetParam()).run(work);
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, VirtualRanks, ::testing::Values(1, 2, 3, 4, 16, 64),
                         ::testing::PrintToStringParamName());

template <class T>
void check_span_collectives(const Communicator& comm) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto me = static_cast<std::size_t>(comm.rank());
  for (const std::size_t count : block_sizes(comm.size())) {
    const auto sum = expected_sum<T>(comm.size(), count * ranks);
    auto values = values_of<T>(comm.rank(), count * ranks);
    std::vector<T> block(count);
    reduce_scatter_sum<T>(comm, values, block);
    EXPECT_TRUE(same_bits<T>(block, std::span(sum).subspan(me * count, count))) << count;
    all_reduce_sum<T>(comm, values);
    EXPECT_TRUE(same_bits<T>(values, sum)) << count;
    std::vector<T> gathered(count * ranks);
    all_gather<T>(comm, block, gathered);
    EXPECT_TRUE(same_bits<T>(gathered, sum)) << count;

    auto largest = values_of<T>(comm.rank(), count);
    auto wanted = values_of<T>(0, count);
    for (Rank rank = 1; rank < comm.size(); ++rank) {
      const auto other = values_of<T>(rank, count);
      std::transform(wanted.begin(), wanted.end(), other.begin(), wanted.begin(),
                     [](T a, T b) { return std::max(a, b); });
    }
    all_reduce_max<T>(comm, largest);
    EXPECT_TRUE(same_bits<T>(largest, wanted)) << count;
  }
}

TEST_P(VirtualRanks, SpanCollectivesEqualTheSerialResult) {
  run([](const Communicator& comm) {
    check_span_collectives<float>(comm);
    check_span_collectives<std::int64_t>(comm);
  });
}

TEST_P(VirtualRanks, BroadcastFromEveryRootInOnePieceAndInMany) {
  run([](const Communicator& comm) {
    // In smaller worlds the longest needs a chain of messages.
    const std::size_t longest = comm.size() <= 4 ? 1'400'001 : 30'001;
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, longest}) {
      for (Rank root = 0; root<comm.size(); root += count> 1 ? (comm.size() + 2) / 3 : 1) {
        auto values = values_of<float>(comm.rank(), count);
        broadcast<float>(comm, values, root);
        ASSERT_TRUE(same_bits<float>(values, values_of<float>(root, count))) << root;
      }
    }
  });
}

TEST_P(VirtualRanks, TextsAgreementsBarriersAndDuplicates) {
  run([](const Communicator& comm) {
    Communicator other = comm.duplicate();
    Communicator third = comm.duplicate();
    const Rank last = comm.size() - 1;
    const std::string mine(static_cast<std::size_t>(comm.rank()) * 1003, 'x');
    EXPECT_EQ(broadcast_text(other, mine, last).size(), static_cast<std::size_t>(last) * 1003);
    const auto texts = gather_texts(third, mine, 0);
    ASSERT_EQ(texts.size(), comm.rank() == 0 ? static_cast<std::size_t>(comm.size()) : 0U);
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      EXPECT_EQ(texts[rank].size(), rank * 1003);
    }
    EXPECT_TRUE(agree(comm, comm.rank() == last, [] {}));
    EXPECT_FALSE(agree(other, false, [] {}));
    try {
      together(comm, [&] {
        if (comm.rank() >= last / 2) {
          throw DataError("broken file");
        }
      });
      ADD_FAILURE() << "no error";
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(last / 2) + " ("));
      EXPECT_TRUE(error.on_all_ranks());
    }
    comm.barrier();
    EXPECT_EQ(local_rank(comm), comm.rank());
    EXPECT_EQ(ranks_on_host(comm), comm.size());
    other.close();
    third.close();
  });
}

TEST_P(VirtualRanks, ABarrierHoldsUntilTheLastRankComes) {
  std::atomic<int> arrived{0};
  run([&](const Communicator& comm) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      comm.barrier();
      EXPECT_GE(arrived.load(), round * comm.size());
      comm.barrier();
    }
  });
}

TEST_P(VirtualRanks, MessagesKeepTheirOrderAndAreNoPartOfCollectives) {
  run([](const Communicator& comm) {
    const Rank neighbour = (comm.rank() + 1) % comm.size();
    for (int i = 0; i < 10; ++i) {
      const std::vector<std::byte> payload(static_cast<std::size_t>(i) * 1000, std::byte{7});
      comm.send(neighbour, i, payload);
    }
    std::vector<float> values(5000, 1.0F);
    all_reduce_sum<float>(comm, values);
    EXPECT_EQ(values.back(), static_cast<float>(comm.size()));
    comm.barrier();
    for (int i = 0; i < 10; ++i) {
      const auto message = comm.try_receive();
      ASSERT_TRUE(message.has_value());
      EXPECT_EQ(message->source, (comm.rank() + comm.size() - 1) % comm.size());
      EXPECT_EQ(message->tag, i);
      EXPECT_EQ(message->payload.size(), static_cast<std::size_t>(i) * 1000);
    }
    EXPECT_FALSE(comm.try_receive().has_value());
  });
}

TEST_P(VirtualRanks, HostCollectivesEqualTheSerialResult) {
  run([](const Communicator& comm) {
    check_every_operation<float>(comm);
    check_every_operation<BFloat16>(comm);
  });
}

TEST_P(VirtualRanks, QueuedOperationsRunInOrderBesideSpanCollectives) {
  run(check_many_queued_operations);
}

TEST_P(VirtualRanks, PayloadIsCountedByKind) { run(check_payload); }

TEST(VirtualWorldResults, TwoRunsGiveTheSameBits) {
  for (const int ranks : {1, 2, 3, 4}) {
    std::array<std::vector<std::vector<std::byte>>, 2> results;
    for (auto& each : results) {
      each.resize(static_cast<std::size_t>(ranks));
      VirtualWorld(ranks).run([&](const Communicator& comm) {
        each[static_cast<std::size_t>(comm.rank())] = all_results(comm);
      });
    }
    EXPECT_EQ(results[0], results[1]) << ranks;
  }
}

TEST(ManyRanks, MessagesStayNearOneMegabyte) {
  struct Case {
    int ranks;
    std::size_t block;  ///< floats of one rank's block
    std::size_t least;  ///< average bytes of a message
  };
  // Three pieces, the last one short; two of half a block, which is all.
  for (const Case& test : {Case{16, 530'007, 700'000}, Case{64, 40'000, 80'000}}) {
    std::vector<float> input(static_cast<std::size_t>(test.ranks) * test.block);
    for (std::size_t i = 0; i < input.size(); ++i) {
      input[i] = static_cast<float>(i % 1009);
    }
    VirtualWorld world(test.ranks);
    world.run([&](const Communicator& comm) {
      std::vector<float> output(test.block);
      reduce_scatter_sum<float>(comm, input, output);
      const std::size_t first = static_cast<std::size_t>(comm.rank()) * test.block;
      std::vector<float> wanted(test.block);
      std::transform(input.data() + first, input.data() + first + test.block, wanted.data(),
                     [&](float value) { return value * static_cast<float>(test.ranks); });
      EXPECT_TRUE(same_bits<float>(output, wanted));
    });
    const VirtualWorld::Traffic traffic = world.traffic();
    const auto ranks = static_cast<std::uint64_t>(test.ranks);
    EXPECT_EQ(traffic.bytes, ranks * (ranks - 1) * test.block * sizeof(float));
    EXPECT_LE(traffic.largest_bytes, std::size_t{1} << 20);
    EXPECT_GE(traffic.bytes / traffic.messages, test.least);
  }
}

TEST(ManyRanks, AnAllReduceEqualsReduceScatterAndAllGatherBitForBit) {
  for (const int ranks : {15, 16, 17, 64}) {
    VirtualWorld(ranks).run([](const Communicator& comm) {
      for (const std::size_t count : {1, 16, 17, comm.size() < 64 ? 20'003 : 301}) {
        auto values = values_of<float>(comm.rank(), count * static_cast<std::size_t>(comm.size()));
        std::vector<float> block(count);
        std::vector<float> gathered(values.size());
        reduce_scatter_sum<float>(comm, values, block);
        all_gather<float>(comm, block, gathered);
        all_reduce_sum<float>(comm, values);
        EXPECT_TRUE(same_bits<float>(values, gathered)) << count;
      }
    });
  }
}

/// Blocks that are shorter at the end, or empty.
TEST(ManyRanks, SizesThatRanksDoNotDivide) {
  for (const int ranks : {16, 17, 64}) {
    VirtualWorld(ranks).run([](const Communicator& comm) {
      for (const std::size_t count : {1025, 1039, 4097, 5001}) {
        auto values = values_of<float>(comm.rank(), count);
        all_reduce_sum<float>(comm, values);
        EXPECT_TRUE(same_bits<float>(values, expected_sum<float>(comm.size(), count))) << count;
        auto half = values_of<BFloat16>(comm.rank(), count);
        all_reduce_sum<BFloat16>(comm, half);
        EXPECT_TRUE(same_bits<BFloat16>(half, expected_sum<BFloat16>(comm.size(), count))) << count;
      }
    });
  }
}

/// A rank throws before its `step`-th operation; all others are in collectives, some queued.
void fail_at(int ranks, Rank failing, int step) {
  std::atomic<int> comm_errors{0};
  try {
    VirtualWorld(ranks).run([&](const Communicator& comm) {
      const auto collectives = make_host_collectives(comm);
      std::vector<float> values(3000);
      std::vector<float> queued(3000);
      try {
        for (int i = 0; i < 12; ++i) {
          if (comm.rank() == failing && i == step) {
            throw DataError("rank " + std::to_string(failing) + " fails");
          }
          const Work work = collectives->all_reduce_sum(view_of(queued));
          if (i % 3 == 0) {
            all_reduce_sum<float>(comm, values);
          } else if (i % 3 == 1) {
            comm.barrier();
          }
          work.wait();
        }
      } catch (const CommError&) {
        ++comm_errors;
        throw;
      }
    });
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()), "rank " + std::to_string(failing) + " fails");
  }
  EXPECT_EQ(comm_errors.load(), ranks - 1);
}

TEST(VirtualWorldFailures, ARankThatThrowsStrandsNobody) {
  for (const int ranks : {1, 2, 3, 4, 16}) {
    for (int step = 0; step < 12; ++step) {
      fail_at(ranks, (step * 7) % ranks, step);
    }
  }
  fail_at(64, 63, 5);
}

TEST(VirtualWorldFailures, AWaitForAnEndedRankIsAnError) {
  EXPECT_THROW(VirtualWorld(3).run([](const Communicator& comm) {
    if (comm.rank() != 1) {
      comm.barrier();
    }
  }),
               CommError);
}

TEST(VirtualWorldFailures, WhoPollsForMessagesLearnsOfAFailure) {
  EXPECT_THROW(VirtualWorld(2).run([](const Communicator& comm) {
    if (comm.rank() == 1) {
      throw DataError("no message from me");
    }
    while (!comm.try_receive().has_value()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }),
               DataError);
}

TEST(VirtualWorldFailures, TheLowestRanksOwnErrorIsThrown) {
  for (int i = 0; i < 20; ++i) {
    try {
      VirtualWorld(4).run([](const Communicator& comm) {
        if (comm.rank() >= 2) {
          throw DataError("from rank " + std::to_string(comm.rank()));
        }
        comm.barrier();
      });
      ADD_FAILURE() << "no error";
    } catch (const DataError& error) {
      EXPECT_EQ(std::string(error.what()), "from rank 2");
    }
  }
}

TEST(VirtualWorldFailures, OtherSizesAreNamed) {
  enable_collective_checks(true);
  for (const bool queued : {false, true}) {
    const std::string message = test::message_of<CommError>([&] {
      VirtualWorld(3).run([&](const Communicator& comm) {
        std::vector<float> values(comm.rank() == 2 ? 11 : 10);
        if (queued) {
          make_host_collectives(comm)->all_reduce_sum(view_of(values)).wait();
        } else {
          all_reduce_sum<float>(comm, values);
        }
      });
    });
    EXPECT_THAT(message, HasSubstr(" all_reduce_sum of 40 bytes"));
    EXPECT_THAT(message, HasSubstr(" all_reduce_sum of 44 bytes"));
  }
  enable_collective_checks(false);
}

TEST(VirtualWorldFailures, WithoutChecksOtherSizesAreAnErrorToo) {
  EXPECT_THROW(VirtualWorld(2).run([](const Communicator& comm) {
    std::vector<float> values(comm.rank() == 1 ? 5000 : 6000);
    all_reduce_sum<float>(comm, values);
  }),
               CommError);
}

TEST(VirtualWorldFailures, RankCountsOutsideTheRangeAreRefused) {
  EXPECT_THROW(VirtualWorld(0), InternalError);
  EXPECT_THROW(VirtualWorld(65), InternalError);
}

}  // namespace
}  // namespace jforge
