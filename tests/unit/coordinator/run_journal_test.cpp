#include "coordinator/run_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "runtime/error.h"
#include "runtime/read_file.h"
#include "runtime/text_seal.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

class RunJournalTest : public ::testing::Test {
 protected:
  test::TemporaryDirectory root_;
  const std::filesystem::path directory_ = root_.path();
};

TEST_F(RunJournalTest, EventsAreOneJsonLineEach) {
  RunJournal journal(directory_);
  journal.record("phase", {{"name", "train round 1"}});
  journal.record("done");
  std::ifstream file(directory_ / "journal.jsonl");
  std::string line;
  std::vector<nlohmann::json> events;
  while (std::getline(file, line)) {
    events.push_back(nlohmann::json::parse(line));
  }
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0]["event"], "phase");
  EXPECT_EQ(events[0]["name"], "train round 1");
  EXPECT_TRUE(events[1].contains("time"));
}

TEST_F(RunJournalTest, StatusRoundTripAndAbsence) {
  EXPECT_TRUE(read_run_status(directory_).is_null());
  write_run_status(directory_, {{"status", "running"}, {"attempt", 2}});
  EXPECT_EQ(read_run_status(directory_)["attempt"], 2);
}

TEST_F(RunJournalTest, TextsThatAreNotUtf8AreKeptReadable) {
  const std::string text = "bad.jsonl:3: \xff\xfe is no text";
  RunJournal(directory_).record("failed", {{"phase", text}});
  write_run_status(directory_, {{"status", "failed"}, {"phase", text}});
  const std::string replaced = "bad.jsonl:3: \xEF\xBF\xBD\xEF\xBF\xBD is no text";
  EXPECT_EQ(read_run_status(directory_)["phase"], replaced);
  EXPECT_EQ(nlohmann::json::parse(read_file(directory_ / "journal.jsonl"))["phase"], replaced);
}

TEST_F(RunJournalTest, DamagedStatusIsNamed) {
  write_run_status(directory_, {{"status", "running"}, {"attempt", 2}});
  const std::string whole = read_file(directory_ / "run.json");
  verify_sealed(directory_ / "run.json");
  std::string flipped = whole;
  flipped[whole.find('2')] = '3';
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("7"),
        flipped, whole.substr(0, whole.size() / 2)}) {
    std::ofstream(directory_ / "run.json", std::ios::binary) << text;
    EXPECT_THAT(test::message_of<DataError>([&] { return read_run_status(directory_); }),
                ::testing::HasSubstr("run.json"))
        << text;
  }
}

TEST_F(RunJournalTest, LinesAreSealed) {
  RunJournal(directory_).record("phase", {{"name", "train"}});
  verify_sealed_lines(directory_ / "journal.jsonl");
  std::string text = read_file(directory_ / "journal.jsonl");
  text[text.find("train")] = 'b';
  std::ofstream(directory_ / "journal.jsonl", std::ios::binary) << text;
  EXPECT_THROW(verify_sealed_lines(directory_ / "journal.jsonl"), DataError);
}

}  // namespace
}  // namespace jforge
