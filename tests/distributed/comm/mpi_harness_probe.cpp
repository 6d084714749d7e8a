#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "tests/support/mpi_test.h"

namespace jforge {
namespace {

using test::test_world;

// mpi_harness_test.sh runs one at a time; all but the first must make the program fail.
bool on_last_rank() { return test_world().rank() == test_world().size() - 1; }

TEST(Probe, Passes) { test_world().barrier(); }

TEST(Probe, FailsOnTheLastRank) { EXPECT_FALSE(on_last_rank()) << "wanted failure"; }

TEST(Probe, ThrowsOnTheLastRank) {
  if (on_last_rank()) {
    throw std::runtime_error("wanted exception");
  }
}

TEST(Probe, HangsOnTheLastRank) {
  if (on_last_rank()) {
    std::this_thread::sleep_for(std::chrono::seconds(60));
  }
}

TEST(Probe, LeavesOthersInACollective) {
  if (!on_last_rank()) {
    test_world().barrier();
  }
}

TEST(Probe, AbortsWithSeven) {
  if (on_last_rank()) {
    MpiSession::abort(7);
  }
  test_world().barrier();
}

TEST(Probe, EndsWithZeroOnTheLastRank) {
  if (on_last_rank()) {
    std::_Exit(0);
  }
}

}  // namespace
}  // namespace jforge
