#include "runtime/comm/failure_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "tests/support/mpi_test.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::test_world;

TEST(Agree, AllWellReturnsFalse) {
  int runs = 0;
  EXPECT_FALSE(agree(test_world(), false, [&] { ++runs; }));
  EXPECT_EQ(runs, 1);
}

TEST(Agree, AStopOnAnyRankIsSeenByAll) {
  const Communicator& world = test_world();
  for (Rank asked = 0; asked < world.size(); ++asked) {
    EXPECT_TRUE(agree(world, world.rank() == asked, [] {})) << asked;
  }
  EXPECT_FALSE(agree(world, false, [] {}));
}

TEST(Agree, OneRanksErrorReachesAllWithCodeRankAndHost) {
  const Communicator& world = test_world();
  for (Rank bad = 0; bad < world.size(); ++bad) {
    try {
      (void)agree(world, false, [&] {
        if (world.rank() == bad) {
          throw DataError("shard 7 is torn");
        }
      });
      FAIL() << "no exception";
    } catch (const DataError& error) {
      EXPECT_EQ(error.code(), ExitCode::input_data);
      EXPECT_THAT(error.what(), StartsWith("rank " + std::to_string(bad) + " (" + host_name() +
                                           "): shard 7 is torn"));
    }
  }
  // The ranks are still in step.
  EXPECT_FALSE(agree(world, false, [] {}));
}

TEST(Agree, WorstCodeAndLowestFailingRanksMessage) {
  const Communicator& world = test_world();
  if (world.size() < 2) {
    return;
  }
  try {
    (void)agree(world, false, [&] {
      if (world.rank() == world.size() - 1) {
        throw NumericalError("loss is NaN");
      }
      throw DataError("bad line");
    });
    FAIL() << "no exception";
  } catch (const NumericalError& error) {
    EXPECT_THAT(error.what(), AllOf(StartsWith("rank 0 ("), HasSubstr("bad line")));
  }
}

TEST(Agree, OwnExceptionIsNestedInside) {
  const Communicator& world = test_world();
  const bool bad = world.rank() == world.size() - 1;
  std::string own;
  try {
    (void)agree(world, false, [&] {
      if (bad) {
        throw std::out_of_range("my own");
      }
    });
    FAIL() << "no exception";
  } catch (const InternalError& error) {
    EXPECT_EQ(error.code(), ExitCode::internal);
    try {
      std::rethrow_if_nested(error);
    } catch (const std::out_of_range& inner) {
      own = inner.what();
    }
  }
  EXPECT_EQ(own, bad ? "my own" : "");
}

TEST(Agree, AnInterruptionDoesNotHideAFailure) {
  const Communicator& world = test_world();
  EXPECT_THROW((void)agree(world, false, [] { throw Interrupted("stopped"); }), Interrupted);
  if (world.size() < 2) {
    return;
  }
  try {
    (void)agree(world, true, [&] {
      if (world.rank() == 0) {
        throw Interrupted("stopped");
      }
      throw DataError("torn");
    });
    FAIL() << "no exception";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), StartsWith("rank 1 ("));
  }
}

TEST(Agree, OutOfMemoryAndUnknownExceptionsHaveCodes) {
  const Communicator& world = test_world();
  EXPECT_THROW((void)agree(world, false, [] { throw std::bad_alloc(); }), EnvironmentError);
  EXPECT_THROW((void)agree(world, false, [] { throw 42; }), InternalError);
}

}  // namespace
}  // namespace jforge
