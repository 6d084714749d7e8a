#include "coordinator/control_plane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/error.h"
#include "runtime/stop_signal.h"
#include "tests/support/mpi_test.h"

namespace jforge {
namespace {

using namespace jforge::test;

constexpr std::int64_t kPrompts = 61;
constexpr std::int32_t kRound = 2;

LeaseQueue queue_of_all() {
  std::vector<PendingPrompt> prompts;
  for (PromptId id = 0; id < kPrompts; ++id) {
    prompts.push_back({id, 1 + id % 7});
  }
  return {std::move(prompts), {.most = 4, .first = 4}, 0};
}

// Returns the round's next lease, or nothing when every prompt is committed.
std::optional<Lease> next_lease(ControlChannel& channel) {
  for (;;) {
    channel.request_lease({kRound, false, false});
    LeaseReply reply = channel.take_lease();
    if (reply.answer == LeaseAnswer::granted) {
      return std::move(reply.lease);
    }
    EXPECT_NE(reply.answer, LeaseAnswer::stop);
    if (reply.answer == LeaseAnswer::drained) {
      return std::nullopt;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(ControlPlane, EveryPromptIsLeasedAndCommittedOnce) {
  const Communicator& world = test_world();
  PhaseClock clock;
  ControlPlane control(world, clock, {});
  ASSERT_EQ(control.coordinator() != nullptr, world.rank() == 0);
  if (Coordinator* coordinator = control.coordinator()) {
    coordinator->open_round(kRound, queue_of_all());
  }
  std::vector<std::int32_t> committed(kPrompts, 0);
  while (const auto lease = next_lease(control.channel())) {
    ASSERT_EQ(control.channel().request_commit(*lease), *lease);
    for (const PromptId prompt : lease->prompts) {
      committed[static_cast<std::size_t>(prompt)] += 1;
    }
    control.channel().commit_done(*lease, std::ssize(lease->prompts), 1);
  }
  all_reduce_sum(world, std::span(committed));
  EXPECT_THAT(committed, ::testing::Each(1));
  if (Coordinator* coordinator = control.coordinator()) {
    EXPECT_EQ(coordinator->progress().prompts_done, kPrompts);
    EXPECT_EQ(coordinator->progress().tokens, kPrompts);
    EXPECT_TRUE(coordinator->close_round());
  }
  control.close(world);
}

/// The last rank has the only lease, the others have no work.
class IdleRanks : public ::testing::Test {
 protected:
  void start(const CoordinatorConfig& config) {
    control_.emplace(world_, clock_, config);
    if (Coordinator* coordinator = control_->coordinator()) {
      coordinator->open_round(kRound, LeaseQueue({{0, 1}}, {}, 0));
    }
    if (worker_) {
      lease_ = next_lease(channel());
      ASSERT_TRUE(lease_.has_value());
    }
    world_.barrier();
  }
  /// Holds the idle ranks' requests, so that no answer comes of time alone.
  void start_with_held_requests() {
    start({.hold_seconds = 60});
    if (!worker_) {
      channel().request_lease({kRound, false, true});
    }
    world_.barrier();
    if (worker_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // they arrive
    }
  }
  void commit() {
    ASSERT_EQ(channel().request_commit(*lease_), *lease_);
    channel().commit_done(*lease_, 1, 1);
  }
  void expect_at_once(LeaseAnswer answer) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(channel().take_lease().answer, answer);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  }
  void end(bool drained) {
    world_.barrier();
    if (Coordinator* coordinator = control_->coordinator()) {
      EXPECT_EQ(coordinator->close_round(), drained);
    }
    control_->close(world_);
    clear_stop_request();
  }
  ControlChannel& channel() { return control_->channel(); }

  const Communicator& world_ = test_world();
  const bool worker_ = world_.rank() == world_.size() - 1;
  PhaseClock clock_;
  std::optional<ControlPlane> control_;
  std::optional<Lease> lease_;
};

TEST_F(IdleRanks, AreHeldBackForASecond) {
  start({});
  if (!worker_) {
    const auto begin = std::chrono::steady_clock::now();
    channel().request_lease({kRound, false, true});
    EXPECT_EQ(channel().take_lease().answer, LeaseAnswer::wait);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(990));
  }
  world_.barrier();
  if (worker_) {
    commit();
  }
  EXPECT_FALSE(next_lease(channel()).has_value());
  end(true);
}

TEST_F(IdleRanks, HearOfTheEndAtOnce) {
  start_with_held_requests();
  if (worker_) {
    commit();
    channel().request_lease({kRound, false, false});
  }
  expect_at_once(LeaseAnswer::drained);
  end(true);
}

TEST_F(IdleRanks, HearAtOnceOfAStopThatAnotherAsksFor) {
  start_with_held_requests();
  if (worker_) {
    channel().request_lease({kRound, true, false});
  }
  expect_at_once(LeaseAnswer::stop);
  end(false);
}

TEST_F(IdleRanks, HearOfAStopByTheirHeartbeatsAndCommitsAreStillAnswered) {
  start({});
  if (worker_) {
    channel().request_lease({kRound, true, false});
    EXPECT_EQ(channel().take_lease().answer, LeaseAnswer::stop);
    commit();
    channel().request_lease({kRound, true, false});
    EXPECT_EQ(channel().take_lease().answer, LeaseAnswer::stop) << "after the commit's message";
  }
  const auto begin = std::chrono::steady_clock::now();
  while (!stop_requested() && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(stop_requested());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
  world_.barrier();
  end(true);
}

TEST(ControlPlane, RanksThatWaitLearnThatTheJobGoesOn) {
  const Communicator& world = test_world();
  PhaseClock clock;
  clock.follow_this_thread();
  clock.enter("export", 0);
  ControlPlane control(world, clock, {});
  const Communicator others = world.duplicate();
  if (world.rank() == world.size() - 1) {
    std::atomic<bool> through{false};
    std::thread waiting([&] {
      others.barrier();
      through = true;
    });
    while (!through) {
      note_progress();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    waiting.join();
  } else {
    const WaitingForOthers waiting;
    const std::uint64_t own = clock.read().progress;
    for (int times = 0; times < 2; ++times) {
      double age = 0;
      for (double now = 0; (now = clock.read().age_seconds) >= age; age = now) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    EXPECT_EQ(clock.read().progress, own) << "what others do is not told as this rank's own";
    others.barrier();
  }
  control.close(world);
}

// As for a stopped process: MPI cannot buffer everything sent to it.
TEST(Coordinator, ARankThatTakesNoReplyHoldsNoOtherUp) {
  const Communicator& world = test_world();
  Communicator requests = world.duplicate();
  Communicator replies = world.duplicate();
  constexpr std::int64_t kLeased = 10'000;
  const auto ask = [&] {
    requests.send(kCoordinatorRank, 1, encode(LeaseRequest{kRound, false, false}));
  };
  const auto granted = [&](const CoordinatorMessage& message) {
    const LeaseReply& reply = std::get<LeaseReply>(message);
    EXPECT_EQ(reply.answer, LeaseAnswer::granted);
    EXPECT_GE(std::ssize(reply.lease.prompts), kLeased);
  };
  InProcessMailbox mailbox;
  std::optional<Coordinator> coordinator;
  if (world.rank() == kCoordinatorRank) {
    coordinator.emplace(requests, replies, mailbox, CoordinatorConfig{});
    std::vector<PendingPrompt> prompts;
    for (PromptId id = 0; id < 10 * kLeased * world.size(); ++id) {
      prompts.push_back({id, 1});
    }
    coordinator->open_round(
        kRound, LeaseQueue(std::move(prompts),
                           {.most = kLeased, .first = kLeased, .ranks = world.size()}, 0));
  }
  world.barrier();
  if (world.rank() != kCoordinatorRank) {
    ask();
  }
  world.barrier();
  if (coordinator) {
    for (int times = 0; times < 3; ++times) {  // after the first reply the others' turn comes
      mailbox.push_request(LeaseRequest{kRound, false, false});
      std::optional<CoordinatorMessage> own;
      while (!(own = mailbox.pop_reply())) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      granted(*own);
    }
  }
  world.barrier();
  if (!coordinator) {
    std::optional<ReceivedMessage> reply;
    while (!(reply = replies.try_receive())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    granted(decode_coordinator_message(reply->payload));
  }
  world.barrier();
  if (coordinator) {
    coordinator->close();
  }
  requests.close();
  replies.close();
}

TEST(ControlPlane, OpensAndClosesAgainWithoutARound) {
  for (int turn = 0; turn < 5; ++turn) {
    PhaseClock clock;
    ControlPlane control(test_world(), clock, {});
    control.close(test_world());
  }
}

TEST(ControlPlane, IsLeftWithoutCloseWhenTheJobFails) {
  PhaseClock clock;
  { const ControlPlane abandoned(test_world(), clock, {}); }
  ControlPlane control(test_world(), clock, {});
  control.close(test_world());
}

TEST(ControlPlane, LimitsThatHeartbeatsCannotKeepAreRefusedOnAllRanks) {
  PhaseClock clock;
  try {
    const ControlPlane control(test_world(), clock, {.heartbeat_limit_seconds = 1.5});
    FAIL() << "no exception";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(error.on_all_ranks());
    EXPECT_THAT(error.what(), ::testing::HasSubstr("run.heartbeat_limit_seconds"));
  }
}

}  // namespace
}  // namespace jforge
