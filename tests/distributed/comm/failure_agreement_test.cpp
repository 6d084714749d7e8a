#include "runtime/comm/failure_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/spdlog.h>

#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "runtime/log.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi_test.h"

namespace jforge {
namespace {

using test::test_world;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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
    EXPECT_THAT(
        test::message_of<DataError>([&] {
          (void)agree(world, false, [&] {
            if (world.rank() == bad) {
              throw DataError("shard 7 is torn");
            }
          });
        }),
        StartsWith("rank " + std::to_string(bad) + " (" + host_name() + "): shard 7 is torn"));
  }
  // The ranks are still in step.
  EXPECT_FALSE(agree(world, false, [] {}));
}

TEST(Agree, WorstCodeAndLowestFailingRanksMessage) {
  const Communicator& world = test_world();
  if (world.size() < 2) {
    return;
  }
  EXPECT_THAT(test::message_of<NumericalError>([&] {
                (void)agree(world, false, [&] {
                  if (world.rank() == world.size() - 1) {
                    throw NumericalError("loss is NaN");
                  }
                  throw DataError("bad line");
                });
              }),
              AllOf(StartsWith("rank 0 ("), HasSubstr("bad line")));
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
  EXPECT_THAT(test::message_of<DataError>([&] {
                (void)agree(world, true, [&] {
                  if (world.rank() == 0) {
                    throw Interrupted("stopped");
                  }
                  throw DataError("torn");
                });
              }),
              StartsWith("rank 1 ("));
}

TEST(Agree, TheFailingRankSaysItBeforeTheOthersAnswer) {
  const Communicator& world = test_world();
  const auto before = spdlog::default_logger();
  const auto lines = std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(8);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", lines));
  const Rank bad = world.size() - 1;
  std::size_t at_once = 0;
  EXPECT_THROW((void)agree(world, false,
                           [&] {
                             if (world.rank() == bad) {
                               throw DataError("shard 7 is torn");
                             }
                           }),
               DataError);
  at_once = lines->last_formatted().size();
  EXPECT_THROW((void)agree(world, false, [] { throw Interrupted("stopped"); }), Interrupted);
  EXPECT_EQ(lines->last_formatted().size(), at_once) << "an interruption is no failure";
  spdlog::set_default_logger(before);
  ASSERT_EQ(at_once, world.size() > 1 && world.rank() == bad ? 1U : 0U);
  if (at_once > 0) {
    EXPECT_THAT(lines->last_formatted().front(),
                AllOf(HasSubstr("error"), HasSubstr("shard 7 is torn")));
  }
}

TEST(Agree, WhatTheSystemRefusesIsTheEnvironmentsFault) {
  const Communicator& world = test_world();
  const auto list = [] {
    for (const auto& entry : std::filesystem::directory_iterator("/dev/null")) {
      (void)entry;
    }
  };
  EXPECT_THROW((void)agree(world, false, list), EnvironmentError);
  try {
    list();
  } catch (const std::exception& error) {
    EXPECT_EQ(describe_failure(error).code, ExitCode::environment);
    EXPECT_THAT(describe_failure(error).message, HasSubstr("/dev/null"));
  }
  EXPECT_EQ(describe_failure(std::bad_alloc()).code, ExitCode::environment);
  EXPECT_EQ(describe_failure(std::out_of_range("x")).code, ExitCode::internal);
  EXPECT_EQ(describe_failure(DataError("x")).code, ExitCode::input_data);
}

TEST(Agree, OutOfMemoryAndUnknownExceptionsHaveCodes) {
  const Communicator& world = test_world();
  EXPECT_THROW((void)agree(world, false, [] { throw std::bad_alloc(); }), EnvironmentError);
  EXPECT_THROW((void)agree(world, false, [] { throw 42; }), InternalError);
}

}  // namespace
}  // namespace jforge
