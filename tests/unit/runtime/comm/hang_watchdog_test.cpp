#include "runtime/comm/hang_watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"

namespace jforge {
namespace {

using std::chrono::milliseconds;

/// The callback runs on the watchdog's thread.
struct Alarm {
  std::mutex mutex;
  PhaseClock::Reading reading;
  std::atomic<int> calls{0};
  std::function<void(const PhaseClock::Reading&)> callback() {
    return [this](const PhaseClock::Reading& seen) {
      const std::lock_guard lock(mutex);
      reading = seen;
      ++calls;
    };
  }
  bool rings_within(milliseconds limit) const {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (calls == 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(2));
    }
    return calls > 0;
  }
};

TEST(WatchedErrors, AreLookedAtWhileTheyLive) {
  const PhaseClock clock;
  const HangWatchdog watchdog(clock);
  std::atomic<int> looks{0};
  {
    const WatchedErrors watched([&] { ++looks; });
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (looks < 2 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(2));
    }
    EXPECT_GE(looks, 2);
  }
  const int seen = looks;
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_EQ(looks, seen);
}

TEST(PhaseClock, ReadsWhatWasWritten) {
  PhaseClock clock;
  EXPECT_EQ(clock.read().phase, "start");
  EXPECT_EQ(clock.read().age_seconds, 0);
  clock.enter("train", 5);
  clock.progress(17);
  const auto before = clock.read();
  EXPECT_EQ(before.phase, "train");
  EXPECT_EQ(before.step, 17);
  EXPECT_EQ(before.deadline_seconds, 5);
  std::this_thread::sleep_for(milliseconds(20));
  const auto later = clock.read();
  EXPECT_GE(later.age_seconds, 0.02);
  EXPECT_EQ(later.progress, before.progress);
  clock.progress(18);
  EXPECT_GT(clock.read().progress, later.progress);
  EXPECT_LT(clock.read().age_seconds, later.age_seconds + 10);
}

TEST(PhaseClock, FollowsOneThreadAlone) {
  PhaseClock clock;
  note_progress();  // without a listener
  clock.follow_this_thread();
  const auto progress = [&] { return clock.read().progress; };
  const std::uint64_t before = progress();
  std::thread([] { note_progress(); }).join();
  EXPECT_EQ(progress(), before) << "another thread's work hides no hang of this one";
  note_progress();
  EXPECT_EQ(progress(), before + 1);
  {
    PhaseClock other;
    other.follow_this_thread();
    note_progress();
    EXPECT_EQ(other.read().progress, 1U);
  }
  note_progress();  // the following clock is gone
  EXPECT_EQ(progress(), before + 1);
}

TEST(PhaseClock, AWaitHasMorePatienceAndAcceptsTheOthersProgress) {
  PhaseClock clock;
  clock.follow_this_thread();
  clock.set_deadline(5);
  clock.enter("train");
  EXPECT_EQ(clock.read().limit_seconds(), 5);
  const auto refreshed = [&] {
    std::this_thread::sleep_for(milliseconds(3));
    const double before = clock.read().age_seconds;
    clock.others_progressed();
    return clock.read().age_seconds < before;
  };
  EXPECT_FALSE(refreshed()) << "what others do says nothing of a rank that works";
  const std::uint64_t before = clock.read().progress;
  {
    const WaitingForOthers lease;
    EXPECT_EQ(clock.read().progress, before + 1);
    { const WaitingForOthers collective; }
    EXPECT_EQ(clock.read().progress, before + 1) << "a wait inside another is no progress";
    EXPECT_TRUE(clock.read().waiting);
    EXPECT_EQ(clock.read().limit_seconds(), 10);
    EXPECT_TRUE(refreshed());
    EXPECT_EQ(clock.read().progress, before + 1)
        << "or ranks that wait would keep each other alive";
  }
  EXPECT_FALSE(clock.read().waiting);
  EXPECT_EQ(clock.read().progress, before + 2);
}

TEST(PhaseClock, APhaseIsAPlaceForFaults) {
  PhaseClock clock;
  arm_faults("throw@phase import:0:2", 0);
  clock.enter("import");
  EXPECT_THROW(clock.enter("import"), InternalError);
  arm_faults("", 0);
}

TEST(HangWatchdog, RingsOnceWithPhaseAndStep) {
  PhaseClock clock;
  clock.enter("all_reduce of gradients", 0.05);
  clock.progress(9);
  Alarm alarm;
  const HangWatchdog watchdog(clock, alarm.callback());
  ASSERT_TRUE(alarm.rings_within(milliseconds(10'000)));
  std::this_thread::sleep_for(milliseconds(150));
  EXPECT_EQ(alarm.calls, 1);
  const std::lock_guard lock(alarm.mutex);
  EXPECT_EQ(alarm.reading.phase, "all_reduce of gradients");
  EXPECT_EQ(alarm.reading.step, 9);
  EXPECT_GT(alarm.reading.age_seconds, 0.05);
}

TEST(HangWatchdog, ProgressAndPhasesWithoutDeadlineKeepItQuiet) {
  using Clock = std::chrono::steady_clock;
  // Far longer than the pauses below, far shorter than their sum.
  for (milliseconds deadline(500);; deadline *= 2) {
    const auto begin = Clock::now();
    auto last = begin;
    auto longest = Clock::duration::zero();
    const auto look = [&] {
      const auto now = Clock::now();
      longest = std::max(longest, now - std::exchange(last, now));
    };
    PhaseClock clock;
    clock.enter("train", std::chrono::duration<double>(deadline).count());
    Alarm alarm;
    const HangWatchdog watchdog(clock, alarm.callback());
    for (int i = 0; last - begin < deadline * 3 / 2; ++i) {
      std::this_thread::sleep_for(milliseconds(25));
      clock.progress(i);
      look();
    }
    clock.enter("idle", 0);
    look();
    // If this thread was delayed, the watchdog may fire: repeat with a longer deadline.
    if (longest > deadline / 2 && deadline < std::chrono::seconds(16)) {
      continue;
    }
    std::this_thread::sleep_for(deadline * 3 / 2);
    EXPECT_EQ(alarm.calls, 0);
    return;
  }
}

TEST(HangWatchdog, AWaitInVainRingsToo) {
  PhaseClock clock;
  clock.follow_this_thread();
  clock.enter("export", 0.05);
  Alarm alarm;
  const WaitingForOthers waiting;
  const HangWatchdog watchdog(clock, alarm.callback());
  ASSERT_TRUE(alarm.rings_within(milliseconds(10'000)));
  const std::lock_guard lock(alarm.mutex);
  EXPECT_TRUE(alarm.reading.waiting);
  EXPECT_GT(alarm.reading.age_seconds, 0.1);
}

TEST(HangWatchdog, AClockThatNeverStartedIsQuietAndDestructionIsPrompt) {
  PhaseClock clock;
  Alarm alarm;
  const auto begin = std::chrono::steady_clock::now();
  {
    const HangWatchdog watchdog(clock, alarm.callback());
    std::this_thread::sleep_for(milliseconds(30));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(alarm.calls, 0);
}

TEST(HangWatchdog, DefaultActionLogsAndExitsWith70) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    initialise_log(2);
    PhaseClock clock;
    clock.set_owner("rank 2 (node1, pid 7)");
    clock.enter("stuck", 0.05);
    const HangWatchdog watchdog(clock);
    std::this_thread::sleep_for(std::chrono::seconds(20));
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char chunk[256];
  for (ssize_t count = 0; (count = ::read(ends[0], chunk, sizeof(chunk))) > 0;) {
    text.append(chunk, static_cast<std::size_t>(count));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 70);
  EXPECT_THAT(text, ::testing::HasSubstr("rank 2 (node1, pid 7) stands still"));
  EXPECT_THAT(text, ::testing::HasSubstr("phase \"stuck\""));
}

TEST(HangWatchdog, TimeASuspendedProcessWasStoppedIsNoHang) {
  const pid_t child = ::fork();
  if (child == 0) {
    PhaseClock clock;
    clock.enter("work", 1.5);
    const HangWatchdog watchdog(clock, [](const PhaseClock::Reading&) { ::_exit(70); });
    for (int i = 0; i < 100; ++i) {
      std::this_thread::sleep_for(milliseconds(30));
      clock.progress(i);
    }
    ::_exit(0);
  }
  std::this_thread::sleep_for(milliseconds(500));
  ::kill(child, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(3500));
  ::kill(child, SIGCONT);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace jforge
