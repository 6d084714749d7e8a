#include "runtime/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "runtime/error.h"
#include "runtime/read_file.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Log : public ::testing::Test {
 protected:
  void TearDown() override { close_log(); }
  test::TemporaryDirectory directory_;
};

TEST_F(Log, LinesShowTimeLevelRankAndPhase) {
  initialise_log(3, "error");
  add_log_file(directory_ / "logs");
  log_info("before");
  set_log_phase("generate round 1");
  log_debug("detail {}", 42);
  close_log();
  const std::string text = read_file(directory_ / "logs" / "rank_0003.log");
  EXPECT_THAT(text, ContainsRegex("^20[0-9-]+ [0-9:.]+ info rank 3 \\[start\\] before\n"));
  EXPECT_THAT(text, HasSubstr(" debug rank 3 [generate round 1] detail 42\n"));
}

TEST_F(Log, LinesAreInTheFileAtOnce) {
  initialise_log(0, "error");
  add_log_file(directory_.path());
  log_info("said");
  EXPECT_THAT(read_file(directory_ / "rank_0000.log"), HasSubstr("said"));
}

TEST_F(Log, ARestartAppends) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    initialise_log(0, "error");
    add_log_file(directory_.path());
    log_info("attempt {}", attempt);
    close_log();
  }
  const std::string text = read_file(directory_ / "rank_0000.log");
  EXPECT_THAT(text, HasSubstr("attempt 0"));
  EXPECT_THAT(text, HasSubstr("attempt 1"));
}

TEST_F(Log, AfterCloseTheFileStaysAsItIs) {
  initialise_log(0, "error");
  add_log_file(directory_.path());
  log_info("inside");
  close_log();
  log_info("outside");
  EXPECT_THAT(read_file(directory_ / "rank_0000.log"), Not(HasSubstr("outside")));
}

TEST_F(Log, ConsoleLevelsByRank) {
  ::testing::internal::CaptureStderr();
  initialise_log(0, "info");
  log_info("zero speaks");
  log_debug("zero whispers");
  initialise_log(1, "info");
  log_info("one is quiet");
  log_warn("one warns");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("zero speaks"));
  EXPECT_THAT(text, Not(HasSubstr("zero whispers")));
  EXPECT_THAT(text, Not(HasSubstr("one is quiet")));
  EXPECT_THAT(text, HasSubstr("one warns"));
}

TEST_F(Log, UnusableDirectoryAndLevelAreRefused) {
  EXPECT_THROW(initialise_log(0, "loud"), ConfigError);
  initialise_log(0, "error");
  std::ofstream(directory_ / "file") << "x";
  EXPECT_THROW(add_log_file(directory_ / "file"), EnvironmentError);
  EXPECT_THROW(add_log_file(directory_ / "file" / "logs"), EnvironmentError);
}

}  // namespace
}  // namespace jforge
