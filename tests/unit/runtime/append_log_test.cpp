#include "runtime/append_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>

#include "runtime/error.h"
#include "runtime/read_file.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

class AppendLogTest : public ::testing::Test {
 protected:
  void write_raw(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  test::TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_ / "log.jsonl";
};

TEST_F(AppendLogTest, LinesInOrderOverReopening) {
  {
    AppendLog log(path_);
    log.append("one");
    log.append("two", true);
    log.append("");
  }
  AppendLog log(path_);
  log.append("three");
  EXPECT_EQ(read_file(path_), "one\ntwo\n\nthree\n");
}

TEST_F(AppendLogTest, TornTailIsCutAtOpen) {
  const std::string complete = "{\"a\":1}\n{\"b\":2}\n";
  const std::string torn = "{\"c\":3";
  for (std::size_t length = 1; length <= torn.size(); ++length) {
    write_raw(complete + torn.substr(0, length));
    AppendLog log(path_);
    log.append("{\"d\":4}");
    EXPECT_EQ(read_file(path_), complete + "{\"d\":4}\n") << length;
  }
}

TEST_F(AppendLogTest, TornTailLongerThanOneChunk) {
  write_raw("kept\n" + std::string(300'000, 'x'));
  { const AppendLog log(path_); }
  EXPECT_EQ(read_file(path_), "kept\n");
  write_raw(std::string(300'000, 'x'));
  { const AppendLog log(path_); }
  EXPECT_EQ(read_file(path_), "");
}

TEST_F(AppendLogTest, FullDiskTakesTheHalfRecordBack) {
  AppendLog log(path_);
  log.append("first");
  {
    const test::FileSizeLimit limit(100);
    EXPECT_THAT(test::message_of<EnvironmentError>([&] { log.append(std::string(500, 'x')); }),
                ::testing::HasSubstr("disk full"));
  }
  EXPECT_EQ(read_file(path_), "first\n");
  log.append("second");
  EXPECT_EQ(read_file(path_), "first\nsecond\n");
}

TEST_F(AppendLogTest, NewlineInARecordIsRefused) {
  AppendLog log(path_);
  EXPECT_THROW(log.append("a\nb"), InternalError);
  EXPECT_EQ(read_file(path_), "");
}

TEST_F(AppendLogTest, UnusablePathIsNamed) {
  EXPECT_THROW(AppendLog(directory_ / "absent" / "log"), EnvironmentError);
  EXPECT_THROW(AppendLog(directory_.path()), EnvironmentError);
}

TEST_F(AppendLogTest, MovingKeepsOneOwner) {
  AppendLog first(path_);
  AppendLog second(std::move(first));
  second.append("a");
  EXPECT_THROW(first.append("b"),
               InternalError);  // NOLINT(bugprone-use-after-move): the refusal is what is tested
  AppendLog third(directory_ / "other.jsonl");
  third = std::move(second);
  third.append("c");
  EXPECT_EQ(read_file(path_), "a\nc\n");
}

}  // namespace
}  // namespace jforge
