#include "runtime/fault_injection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "runtime/error.h"
#include "runtime/stop_signal.h"

namespace jforge {
namespace {

class FaultInjection : public ::testing::Test {
 protected:
  void TearDown() override { arm_faults("", 0); }

  /// Wait status of a child that visits "here" three times.
  static int status_of_child(const char* specification) {
    const pid_t child = ::fork();
    if (child == 0) {
      arm_faults(specification, 0);
      for (int i = 0; i < 3; ++i) {
        fault_point("here");
      }
      ::_exit(33);
    }
    int status = 0;
    ::waitpid(child, &status, WUNTRACED);
    if (WIFSTOPPED(status)) {
      ::kill(child, SIGKILL);
      int ended = 0;
      ::waitpid(child, &ended, 0);
    }
    return status;
  }
};

TEST_F(FaultInjection, DisarmedDoesNothing) {
  arm_faults("", 0);
  fault_point("here");
  EXPECT_FALSE(fault_point("here", 1));
}

TEST_F(FaultInjection, ActsOnTheNamedVisitOnce) {
  arm_faults("throw@train:0:3", 0);
  fault_point("train");
  fault_point("generate");
  fault_point("train");
  EXPECT_THROW(fault_point("train"), InternalError);
  fault_point("train");
}

TEST_F(FaultInjection, ActsOnTheNamedStep) {
  arm_faults("throw@train:0:50", 0);
  EXPECT_FALSE(fault_point("train", 49));
  EXPECT_THROW((void)fault_point("train", 50), InternalError);
  EXPECT_FALSE(fault_point("train", 50));
}

TEST_F(FaultInjection, OnlyOnTheNamedRank) {
  arm_faults("throw@train:1:1", 0);
  fault_point("train");
  arm_faults("throw@train:1:1", 1);
  EXPECT_THROW(fault_point("train"), InternalError);
}

TEST_F(FaultInjection, SeveralFaultsAndPlacesWithDots) {
  arm_faults("throw@checkpoint.data:0:1,nan@gradient:0:7,throw@checkpoint.data:0:2", 0);
  EXPECT_THROW(fault_point("checkpoint.data"), InternalError);
  EXPECT_THROW(fault_point("checkpoint.data"), InternalError);
  EXPECT_TRUE(fault_point("gradient", 7));
  EXPECT_FALSE(fault_point("gradient", 7));
}

TEST_F(FaultInjection, NanNeedsAPlaceThatCanActItOut) {
  arm_faults("nan@publish.data:0:1", 0);
  EXPECT_THROW(fault_point("publish.data"), ConfigError);
}

TEST_F(FaultInjection, InterruptSetsTheStopFlag) {
  install_signal_handlers();
  clear_stop_request();
  arm_faults("interrupt@here:0:1", 0);
  fault_point("here");
  EXPECT_TRUE(stop_requested());
  clear_stop_request();
}

TEST_F(FaultInjection, KillStopAndExit) {
  int status = status_of_child("kill@here:0:2");
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  status = status_of_child("stop@here:0:2");
  EXPECT_TRUE(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP) << status;
  status = status_of_child("exit0@here:0:2");
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  status = status_of_child("kill@here:0:4");
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 33)
      << "beyond the last visit: " << status;
}

TEST_F(FaultInjection, AStalledThreadLeavesTheOthersRunning) {
  const pid_t child = ::fork();
  if (child == 0) {
    arm_faults("stall@here:0:1", 0);
    std::thread([] { fault_point("here"); }).detach();
    while (faults_armed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ::_exit(33);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 33) << status;
}

TEST_F(FaultInjection, BadTextIsRefusedAndArmsNothing) {
  for (const char* text :
       {"kill", "kill@train", "kill@train:0", "@train:0:1", "kill@:0:1", "boom@train:0:1",
        "kill@train:x:1", "kill@train:0:", "kill@train:0:1x", "kill@train:-1:1", "kill@train::1",
        "throw@here:0:1,", ",throw@here:0:1", "throw@here:0:1,,throw@here:0:1"}) {
    EXPECT_THROW(arm_faults(text, 0), ConfigError) << text;
    EXPECT_NO_THROW(fault_point("here")) << text;
  }
}

}  // namespace
}  // namespace jforge
