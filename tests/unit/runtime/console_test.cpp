#include "runtime/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>

#include "runtime/log.h"
#include "runtime/stop_signal.h"

namespace jforge {
namespace {

/// None if a signal ended the child.
int code_of_child(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(work());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Console, ClosedStreamsAreOpenedSoThatNoFileGetsTheirNumbers) {
  EXPECT_EQ(code_of_child([] {
              ::close(STDIN_FILENO);
              ::close(STDOUT_FILENO);
              ::close(STDERR_FILENO);
              open_standard_streams();
              return ::open("/dev/null", O_RDONLY) > STDERR_FILENO ? 3 : 4;
            }),
            3);
  EXPECT_EQ(code_of_child([] {
              ::close(STDERR_FILENO);
              open_standard_streams();
              return ::write(STDERR_FILENO, "x", 1) == 1 ? 3 : 4;
            }),
            3);
}

TEST(Console, OpenStreamsStayWhatTheyAre) {
  EXPECT_EQ(code_of_child([] {
              int ends[2];
              char byte = 0;
              if (::pipe(ends) != 0) {
                return 1;
              }
              ::dup2(ends[1], STDOUT_FILENO);
              open_standard_streams();
              tell(stdout, "y");
              return ::read(ends[0], &byte, 1) == 1 && byte == 'y' ? 3 : 2;
            }),
            3);
}

TEST(Console, AReaderThatIsGoneIsNoError) {
  EXPECT_EQ(code_of_child([] {
              install_signal_handlers();
              int ends[2];
              if (::pipe(ends) != 0) {
                return 1;
              }
              ::dup2(ends[1], STDOUT_FILENO);
              ::dup2(ends[1], STDERR_FILENO);
              ::close(ends[1]);
              ::close(ends[0]);
              initialise_log(0);
              for (int i = 0; i < 100; ++i) {
                tell(stdout, "a report\n");
                tell(stderr, "a bar\n");
                log_info("a line");
              }
              return 3;
            }),
            3);
}

TEST(Console, WhatIsSaidNextTakesTheBarsPlace) {
  ::testing::internal::CaptureStderr();
  initialise_log(0);
  tell_bar("[#...]", false);
  tell_bar("[##..]", false);
  tell(stderr, "jforge: an error\n");
  tell(stderr, "and more\n");
  tell_bar("[###.]", false);
  log_info("a line");
  tell_bar("[####]", true);
  end_bar();
  tell_bar("[#...]", false);
  end_bar();
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("\r\033[K[#...]\r\033[K[##..]\r\033[Kjforge: an error\nand more\n"
                      "\r\033[K[###.]\r\033[K2"),
            0U)
      << text;
  EXPECT_TRUE(text.ends_with("a line\n\r\033[K[####]\n\r\033[K[#...]\n")) << text;
}

TEST(Console, AFullDiskBehindARedirectionIsNoError) {
  EXPECT_EQ(code_of_child([] {
              ::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO);
              tell(stdout, "a report\n");
              return 3;
            }),
            3);
}

}  // namespace
}  // namespace jforge
