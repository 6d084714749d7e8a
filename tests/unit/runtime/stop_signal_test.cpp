#include "runtime/stop_signal.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>

namespace jforge {
namespace {

/// In a child, so that handlers do not leak into other tests.
int status_of_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(StopSignal, EachSignalSetsTheFlagOnly) {
  for (const int signal : {SIGUSR2, SIGTERM, SIGINT}) {
    const int status = status_of_child([signal] {
      install_signal_handlers();
      if (stop_requested()) {
        return 1;
      }
      ::raise(signal);
      return stop_requested() ? 0 : 2;
    });
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "signal " << signal;
  }
}

TEST(StopSignal, SecondTerminationEndsTheProcessBySignal) {
  const int status = status_of_child([] {
    install_signal_handlers();
    ::raise(SIGINT);
    ::raise(SIGTERM);
    return 0;
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

TEST(StopSignal, WarningsDoNotAddUpToAnEnd) {
  const int status = status_of_child([] {
    install_signal_handlers();
    ::raise(SIGUSR2);
    ::raise(SIGUSR2);
    ::raise(SIGTERM);
    return stop_requested() ? 0 : 1;
  });
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(StopSignal, AClosedPipeIsAnErrorCode) {
  const int status = status_of_child([] {
    install_signal_handlers();
    int ends[2];
    if (::pipe(ends) != 0) {
      return 1;
    }
    ::close(ends[0]);
    return ::write(ends[1], "x", 1) == -1 && errno == EPIPE ? 0 : 2;
  });
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(StopSignal, ByProgram) {
  clear_stop_request();
  EXPECT_FALSE(stop_requested());
  request_stop();
  EXPECT_TRUE(stop_requested());
  clear_stop_request();
  EXPECT_FALSE(stop_requested());
}

TEST(StopSignal, ByTheClockWithALeadInTheSecondHalfOfTheTime) {
  const double now = seconds_since_epoch();
  request_stop_at(now + 1000);
  EXPECT_FALSE(stop_requested(1e6)) << "the first half is the job's";
  request_stop_at(now + kStopMarginSeconds + 60, now - 1000);
  EXPECT_FALSE(stop_requested());
  EXPECT_TRUE(stop_requested(60));
  request_stop_at(now + kStopMarginSeconds, now - 1000);
  EXPECT_TRUE(stop_requested());
  clear_stop_request();
  EXPECT_FALSE(stop_requested(1e6));
}

}  // namespace
}  // namespace jforge
