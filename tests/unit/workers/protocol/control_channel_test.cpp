#include "workers/protocol/control_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "runtime/error.h"

namespace jforge {
namespace {

using namespace std::chrono_literals;

std::optional<RankMessage> next_request(InProcessMailbox& mailbox) {
  for (int i = 0; i < 2000; ++i) {
    if (auto message = mailbox.pop_request()) {
      return message;
    }
    std::this_thread::sleep_for(1ms);
  }
  return std::nullopt;
}

TEST(ControlChannel, HeartbeatsCarryThePhaseClock) {
  InProcessMailbox mailbox;
  PhaseClock clock;
  clock.enter("train round 2", 0);
  clock.progress(17);
  ControlChannel channel(make_in_process_link(mailbox), clock, {});
  const auto message = next_request(mailbox);
  ASSERT_TRUE(message && std::holds_alternative<Heartbeat>(*message));
  EXPECT_EQ(std::get<Heartbeat>(*message).phase, "train round 2");
  EXPECT_EQ(std::get<Heartbeat>(*message).step, 17);
  mailbox.push_reply(HeartbeatReply{"node0", 1});
  channel.close();
}

TEST(ControlChannel, LeaseAndCommitTraffic) {
  InProcessMailbox mailbox;
  PhaseClock clock;
  ControlChannel channel(make_in_process_link(mailbox), clock, {});
  std::thread coordinator([&] {
    for (int answered = 0; answered < 2;) {
      const auto message = next_request(mailbox);
      if (!message) {
        return;
      }
      if (std::holds_alternative<LeaseRequest>(*message)) {
        mailbox.push_reply(LeaseReply{LeaseAnswer::granted, Lease{4, 1, {9, 8}}});
        ++answered;
      } else if (const auto* commit = std::get_if<CommitRequest>(&*message)) {
        mailbox.push_reply(CommitReply{commit->lease});
        ++answered;
      }
    }
  });
  channel.request_lease({1, false, false});
  const LeaseReply reply = channel.take_lease();
  EXPECT_EQ(reply.lease, (Lease{4, 1, {9, 8}}));
  EXPECT_EQ(channel.request_commit(reply.lease), reply.lease);
  channel.commit_done(reply.lease, 10, 5);
  coordinator.join();
  channel.close();
  bool done_seen = false;
  while (auto message = mailbox.pop_request()) {
    done_seen = done_seen || std::holds_alternative<CommitDone>(*message);
  }
  EXPECT_TRUE(done_seen);
}

class BrokenLink final : public CoordinatorLink {
 public:
  void send(const RankMessage&) override { throw CommError("the wire is cut"); }
  std::optional<CoordinatorMessage> try_receive() override { return std::nullopt; }
};

TEST(ControlChannel, AFailureOfTheLinkReachesTheWorkerAndIsSaidAtOnce) {
  PhaseClock clock;
  std::promise<std::string> said;
  ControlChannel channel(std::make_unique<BrokenLink>(), clock,
                         {.on_lost = [&](const std::string& text) { said.set_value(text); }});
  // The channel is unused, as in training.
  EXPECT_THAT(said.get_future().get(), ::testing::HasSubstr("the wire is cut"));
  channel.request_lease({1, false, false});
  EXPECT_THROW((void)channel.take_lease(), CommError);
  EXPECT_THROW(channel.close(), CommError);
}

struct FakeCoordinator {
  std::atomic<bool> silent{false};
  /// Written by the channel's thread until it is silent.
  std::chrono::steady_clock::time_point answered;
};

/// Answers heartbeats until told to fall silent.
class AnsweringLink final : public CoordinatorLink {
 public:
  explicit AnsweringLink(FakeCoordinator& coordinator) : coordinator_(coordinator) {}
  void send(const RankMessage& message) override {
    if (std::holds_alternative<Heartbeat>(message) && !coordinator_.silent) {
      coordinator_.answered = std::chrono::steady_clock::now();
      ++due_;
    }
  }
  std::optional<CoordinatorMessage> try_receive() override {
    if (due_ == 0) {
      return std::nullopt;
    }
    --due_;
    return HeartbeatReply{"node0", 4711};
  }

 private:
  FakeCoordinator& coordinator_;
  int due_ = 0;
};

TEST(ControlChannel, ASilentCoordinatorIsNamedOnceAfterTheLimit) {
  FakeCoordinator coordinator;
  std::atomic<int> calls{0};
  std::promise<std::string> lost;
  PhaseClock clock;
  ControlChannel channel(std::make_unique<AnsweringLink>(coordinator), clock,
                         {2.5, [&](const std::string& message) {
                            if (calls++ == 0) {
                              lost.set_value(message);
                            }
                          }});
  std::this_thread::sleep_for(3s);
  EXPECT_EQ(calls, 0) << "the coordinator answers";
  coordinator.silent = true;
  auto message = lost.get_future();
  ASSERT_EQ(message.wait_for(30s), std::future_status::ready);
  EXPECT_GE(std::chrono::steady_clock::now() - coordinator.answered, 2500ms);
  const std::string text = message.get();
  EXPECT_NE(text.find("rank 0 (host node0, pid 4711) is silent"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(calls, 1);
}

TEST(ControlChannel, ACoordinatorThatNeverAnswersIsFoundToo) {
  FakeCoordinator coordinator;
  coordinator.silent = true;
  std::promise<std::string> lost;
  PhaseClock clock;
  ControlChannel channel(std::make_unique<AnsweringLink>(coordinator), clock,
                         {0.2, [&](const std::string& message) { lost.set_value(message); }});
  auto message = lost.get_future();
  ASSERT_EQ(message.wait_for(30s), std::future_status::ready);
  EXPECT_NE(message.get().find("it never answered"), std::string::npos);
}

}  // namespace
}  // namespace jforge
