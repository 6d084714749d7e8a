#include "workers/protocol/messages.h"

#include <gtest/gtest.h>

#include "runtime/error.h"

namespace jforge {
namespace {

const std::vector<RankMessage> kRankMessages = {
    Heartbeat{"generate round 1", 12, 99, 0.25, true, 640, 200, "node3", 1234},
    LeaseRequest{2, true, false}, LeaseRequest{2, false, true}, CommitRequest{{7, 1, {5}}},
    CommitDone{7, 1, 512, 300}};
const std::vector<CoordinatorMessage> kCoordinatorMessages = {
    LeaseReply{LeaseAnswer::granted, Lease{3, 0, {5, 6, 7}}}, LeaseReply{LeaseAnswer::drained, {}},
    CommitReply{{9, 1, {5}}}, HeartbeatReply{"node0", 4711, 99, true}};

TEST(Messages, RoundTrip) {
  for (const RankMessage& message : kRankMessages) {
    EXPECT_EQ(decode_rank_message(encode(message)), message);
  }
  for (const CoordinatorMessage& message : kCoordinatorMessages) {
    EXPECT_EQ(decode_coordinator_message(encode(message)), message);
  }
}

TEST(Messages, EveryTruncationAndSurplusIsRefused) {
  for (const RankMessage& message : kRankMessages) {
    auto bytes = encode(message);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THROW((void)decode_rank_message(std::span(bytes).first(size)), CommError) << size;
    }
    bytes.push_back(std::byte{0});
    EXPECT_THROW((void)decode_rank_message(bytes), CommError);
  }
  for (const CoordinatorMessage& message : kCoordinatorMessages) {
    auto bytes = encode(message);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THROW((void)decode_coordinator_message(std::span(bytes).first(size)), CommError)
          << size;
    }
    bytes.push_back(std::byte{0});
    EXPECT_THROW((void)decode_coordinator_message(bytes), CommError);
  }
}

TEST(Messages, UnknownKindsAndHugeLengthsAreRefused) {
  EXPECT_THROW((void)decode_rank_message(std::vector<std::byte>{std::byte{200}}), CommError);
  auto bytes = encode(CoordinatorMessage{LeaseReply{LeaseAnswer::granted, Lease{3, 0, {5}}}});
  bytes[1] = std::byte{17};
  EXPECT_THROW((void)decode_coordinator_message(bytes), CommError) << "unknown answer";
  bytes = encode(RankMessage{Heartbeat{}});
  for (std::size_t i = 1; i < 9; ++i) {
    bytes[i] = std::byte{0xff};  // the phase text's length
  }
  EXPECT_THROW((void)decode_rank_message(bytes), CommError);
}

}  // namespace
}  // namespace jforge
