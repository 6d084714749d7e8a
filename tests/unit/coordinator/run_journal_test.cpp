#include "coordinator/run_journal.h"

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/error.h"

namespace jforge {
namespace {

class RunJournalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "jforge-journal-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::filesystem::path directory_;
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

TEST_F(RunJournalTest, GarbledStatusIsNamed) {
  std::ofstream(directory_ / "run.json") << "{";
  EXPECT_THROW((void)read_run_status(directory_), DataError);
}

}  // namespace
}  // namespace jforge
