#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/error.h"
#include "tests/support/mpi_test.h"

namespace jforge {
namespace {

using test::test_world;

std::vector<std::byte> pattern(std::size_t size, Rank source, int tag) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(
        (i * 31 + static_cast<std::size_t>(source) * 7 + static_cast<std::size_t>(tag)) & 0xFF);
  }
  return bytes;
}

ReceivedMessage receive(const Communicator& comm) {
  for (;;) {
    if (auto message = comm.try_receive()) {
      return std::move(*message);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(Messages, NothingWaitingIsNothing) {
  Communicator comm = test_world().duplicate();
  EXPECT_FALSE(comm.try_receive().has_value());
  comm.close();
}

TEST(Messages, EverySizeArrivesWholeWithSourceAndTag) {
  Communicator comm = test_world().duplicate();
  const std::vector<std::size_t> sizes{0, 1, 4095, 65'537, 5'000'003};
  if (comm.rank() == 0) {
    std::vector<int> next(static_cast<std::size_t>(comm.size()), 0);
    for (std::size_t i = 0; i < sizes.size() * static_cast<std::size_t>(comm.size() - 1); ++i) {
      const auto message = receive(comm);
      // Messages of one sender keep their order.
      EXPECT_EQ(message.tag, next[static_cast<std::size_t>(message.source)]++);
      EXPECT_EQ(message.payload,
                pattern(sizes[static_cast<std::size_t>(message.tag)], message.source, message.tag));
    }
    EXPECT_FALSE(comm.try_receive().has_value());
  } else {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      comm.send(0, static_cast<int>(i), pattern(sizes[i], comm.rank(), static_cast<int>(i)));
    }
  }
  comm.close();
}

TEST(Messages, WhatNobodyTakesHoldsNobodyUp) {
  Communicator comm = test_world().duplicate();
  constexpr std::size_t kBytes = 5'000'003;  // too long for MPI to buffer
  for (Rank rank = 0; rank < comm.size(); ++rank) {
    comm.send(rank, rank, pattern(kBytes, comm.rank(), rank));
  }
  comm.barrier();  // each rank has sent, none has received
  for (int i = 0; i < comm.size(); ++i) {
    const ReceivedMessage message = receive(comm);
    EXPECT_EQ(message.payload, pattern(kBytes, message.source, comm.rank()));
  }
  comm.close();
}

TEST(Messages, CollectivesOnTheSameCommunicatorAreNotStolen) {
  Communicator comm = test_world().duplicate();
  const Rank neighbour = (comm.rank() + 1) % comm.size();
  comm.send(neighbour, 9, pattern(3, comm.rank(), 9));
  std::vector<float> values(600'000, 1.0F);
  all_reduce_sum<float>(comm, values);
  EXPECT_EQ(values.front(), static_cast<float>(comm.size()));
  const auto message = receive(comm);
  EXPECT_EQ(message.tag, 9);
  EXPECT_EQ(message.source, (comm.rank() + comm.size() - 1) % comm.size());
  EXPECT_FALSE(comm.try_receive().has_value());
  comm.close();
}

TEST(Messages, AControlThreadTalksWhileTheWorkerIsInACollective) {
  Communicator control = test_world().duplicate();
  const Communicator& world = test_world();
  constexpr int kMessages = 20;
  std::vector<int> received;
  std::thread thread([&] {
    const Rank neighbour = (control.rank() + 1) % control.size();
    for (int i = 0; i < kMessages; ++i) {
      control.send(neighbour, i, pattern(100, control.rank(), i));
      received.push_back(receive(control).tag);
    }
  });
  std::vector<float> values(100'000, 1.0F);
  for (int i = 0; i < 20; ++i) {
    std::fill(values.begin(), values.end(), 1.0F);
    all_reduce_sum<float>(world, values);
    EXPECT_EQ(values.back(), static_cast<float>(world.size()));
  }
  thread.join();
  EXPECT_EQ(received.size(), static_cast<std::size_t>(kMessages));
  control.close();
}

TEST(Messages, NoSuchRankIsRefused) {
  EXPECT_THROW(test_world().send(test_world().size(), 0, {}), InternalError);
  EXPECT_THROW(test_world().send(-1, 0, {}), InternalError);
}

TEST(Messages, CommunicatorsMoveAndCloseTwiceSafely) {
  Communicator first = test_world().duplicate();
  Communicator second = std::move(first);
  EXPECT_EQ(second.size(), test_world().size());
  EXPECT_EQ(second.rank(), test_world().rank());
  second.barrier();
  second.close();
  second.close();
}

TEST(Messages, HostNameIsNotEmpty) { EXPECT_FALSE(host_name().empty()); }

}  // namespace
}  // namespace jforge
