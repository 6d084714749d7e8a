#include "workers/generate/lease_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>

#include "runtime/error.h"
#include "runtime/phase_clock.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

using namespace std::chrono_literals;

Lease lease(LeaseId id) { return {.id = id, .attempt = 1, .prompts = {id}}; }
std::vector<Trajectory> trajectories(LeaseId id) {
  Trajectory trajectory;
  trajectory.prompt_id = id;
  return {trajectory};
}

TEST(LeaseWriter, WritesInOrderOnAnotherThread) {
  std::vector<LeaseId> written;
  std::thread::id writer_thread;
  {
    LeaseWriter writer([&](const Lease& lease, const std::vector<Trajectory>& done) {
      EXPECT_EQ(done.at(0).prompt_id, lease.id);
      written.push_back(lease.id);
      writer_thread = std::this_thread::get_id();
    });
    for (LeaseId id = 0; id < 20; ++id) {
      writer.add(lease(id), trajectories(id));
    }
    writer.finish();
    EXPECT_EQ(written.size(), 20U);
    writer.add(lease(20), trajectories(20));
  }  // the destructor waits, too
  ASSERT_EQ(written.size(), 21U);
  EXPECT_TRUE(std::ranges::is_sorted(written));
  EXPECT_NE(writer_thread, std::this_thread::get_id());
}

TEST(LeaseWriter, FewLeasesWaitAndEachThatIsWrittenIsProgress) {
  std::promise<void> gate;
  std::atomic<int> written = 0;
  PhaseClock clock;
  LeaseWriter writer([&](const Lease&, const std::vector<Trajectory>&) {
    if (written == 0) {
      gate.get_future().wait();
    }
    ++written;
  });
  const auto full = static_cast<LeaseId>(LeaseWriter::kMostWaiting) + 1;
  for (LeaseId id = 0; id < full; ++id) {
    writer.add(lease(id), trajectories(id));
  }
  std::atomic<bool> added = false;
  std::atomic<bool> finished = false;
  std::thread decoding([&] {
    clock.follow_this_thread();
    writer.add(lease(full), trajectories(full));
    added = true;
    writer.finish();
    finished = true;
  });
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(added);
  const std::uint64_t before = clock.read().progress;
  gate.set_value();
  decoding.join();
  EXPECT_TRUE(added && finished);
  EXPECT_EQ(written, full + 1);
  EXPECT_GT(clock.read().progress, before);
}

TEST(LeaseWriter, ProgressWithinALeaseIsProgressOfWhoWaits) {
  std::atomic<bool> seen = false;
  LeaseWriter writer([&](const Lease&, const std::vector<Trajectory>&) {
    for (int slice = 0; slice < 1000 && !seen; ++slice) {
      std::this_thread::sleep_for(10ms);
      note_progress();
    }
  });
  PhaseClock clock;
  std::atomic<bool> waits = false;
  std::thread decoding([&] {
    clock.follow_this_thread();
    writer.add(lease(1), trajectories(1));
    waits = true;
    writer.finish();
    waits = false;
  });
  while (!waits) {
    std::this_thread::sleep_for(1ms);
  }
  while (waits && clock.read().progress < 3) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_TRUE(waits) << "only the end of the lease was a sign of progress";
  seen = true;
  decoding.join();
}

TEST(LeaseWriter, AFailureReachesWhoAddsAndDropsTheRest) {
  std::promise<void> gate;
  std::vector<LeaseId> written;
  LeaseWriter writer([&](const Lease& lease, const std::vector<Trajectory>&) {
    written.push_back(lease.id);
    if (lease.id == 1) {
      gate.get_future().wait();
      throw EnvironmentError("the disk is full");
    }
  });
  EXPECT_NO_THROW(writer.rethrow_failure());
  for (LeaseId id = 0; id < 4; ++id) {
    writer.add(lease(id), trajectories(id));
  }
  gate.set_value();
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(test::message_of<EnvironmentError>([&] { writer.finish(); }), "the disk is full")
        << "no failure";
    EXPECT_THROW(writer.rethrow_failure(), EnvironmentError);
    EXPECT_THROW(writer.add(lease(9), trajectories(9)), EnvironmentError);
  }
  EXPECT_EQ(written, (std::vector<LeaseId>{0, 1}));
}

TEST(LeaseWriter, AFailureEndsTheWaitForRoom) {
  std::promise<void> gate;
  LeaseWriter writer([&](const Lease&, const std::vector<Trajectory>&) {
    gate.get_future().wait();
    throw DataError("no");
  });
  std::thread opener([&] {
    std::this_thread::sleep_for(20ms);
    gate.set_value();
  });
  EXPECT_THROW(
      {
        for (LeaseId id = 0; id < 10; ++id) {
          writer.add(lease(id), trajectories(id));
        }
      },
      DataError);
  opener.join();
}

}  // namespace
}  // namespace jforge
