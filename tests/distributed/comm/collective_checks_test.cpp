#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi_test.h"

namespace jforge {
namespace {

using test::test_world;
using ::testing::HasSubstr;

/// Each test has its own communicator, because a mismatch ends it.
class CollectiveChecks : public ::testing::Test {
 protected:
  void SetUp() override { enable_collective_checks(true); }
  void TearDown() override { enable_collective_checks(false); }
};

TEST_F(CollectiveChecks, EqualSequencesPass) {
  Communicator comm = test_world().duplicate();
  std::vector<float> values(static_cast<std::size_t>(comm.size()), 1.0F);
  for (int i = 0; i < 5; ++i) {
    comm.barrier();
    all_reduce_sum<float>(comm, values);
    all_reduce_max<float>(comm, values);
    broadcast<float>(comm, values, 0);
    reduce_scatter_sum<float>(comm, values, std::span(values).first(1));
    (void)broadcast_text(comm, std::to_string(comm.rank()), comm.size() - 1);
    (void)gather_texts(comm, std::to_string(comm.rank()), 0);
    EXPECT_FALSE(agree(comm, false, [] {}));
  }
  comm.close();
}

TEST_F(CollectiveChecks, OtherSizeIsNamedOnEveryRank) {
  if (test_world().size() == 1) {
    return;
  }
  const Communicator comm = test_world().duplicate();
  const bool odd = comm.rank() == comm.size() - 1;
  std::vector<float> values(odd ? 11 : 10);
  const auto message = test::message_of<CommError>([&] { all_reduce_sum<float>(comm, values); });
  EXPECT_THAT(message, HasSubstr("rank 0: #1 all_reduce_sum of 40 bytes"));
  EXPECT_THAT(message, HasSubstr("rank " + std::to_string(comm.size() - 1) +
                                 ": #1 all_reduce_sum of 44 bytes"));
}

TEST_F(CollectiveChecks, OtherOperationIsNamedOnEveryRank) {
  if (test_world().size() == 1) {
    return;
  }
  const Communicator comm = test_world().duplicate();
  std::vector<float> values(10);
  const auto message = test::message_of<CommError>([&] {
    if (comm.rank() == 1) {
      broadcast<float>(comm, values, 0);
    } else {
      all_reduce_sum<float>(comm, values);
    }
  });
  EXPECT_THAT(message, HasSubstr("rank 0: #1 all_reduce_sum"));
  EXPECT_THAT(message, HasSubstr("rank 1: #1 broadcast"));
}

TEST_F(CollectiveChecks, SkippedOperationIsFoundAtTheNextOne) {
  if (test_world().size() == 1) {
    return;
  }
  const Communicator comm = test_world().duplicate();
  std::vector<float> values(10);
  const auto message = test::message_of<CommError>([&] {
    if (comm.rank() != 1) {
      all_reduce_sum<float>(comm, values);
    }
    broadcast<float>(comm, values, 0);
  });
  EXPECT_THAT(message, HasSubstr("rank 0: #1 all_reduce_sum"));
  EXPECT_THAT(message, HasSubstr("rank 1: #1 broadcast"));
}

TEST_F(CollectiveChecks, OtherRootIsNamed) {
  if (test_world().size() == 1) {
    return;
  }
  const Communicator comm = test_world().duplicate();
  std::vector<float> values(10);
  const auto message = test::message_of<CommError>(
      [&] { broadcast<float>(comm, values, comm.rank() == 0 ? 0 : 1); });
  EXPECT_THAT(message, HasSubstr("root 0; rank 1"));
}

}  // namespace
}  // namespace jforge
