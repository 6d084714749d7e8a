#include "results/report/metrics_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/write_text.h"

namespace jforge {
namespace {

using test::TemporaryDirectory;
using test::write_text;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string row(int round, int step, double loss) {
  return "{\"round\": " + std::to_string(round) + ", \"step\": " + std::to_string(step) +
         ", \"loss\": " + std::to_string(loss) + ", \"note\": \"text is left out\"}\n";
}

TEST(MetricsReader, RowsOfRoundsInTheOrderOfSteps) {
  const TemporaryDirectory directory;
  write_text(directory / "metrics.1.jsonl", row(2, 1, 5) + row(1, 2, 3) + row(1, 1, 4));
  const auto rounds = read_metrics(directory.path());
  ASSERT_EQ(rounds.size(), 2U);
  ASSERT_EQ(rounds.at(1).size(), 2U);
  EXPECT_EQ(rounds.at(1)[0].step, 1);
  EXPECT_EQ(rounds.at(1)[0].values.at("loss"), 4);
  EXPECT_EQ(rounds.at(1)[1].step, 2);
  EXPECT_EQ(rounds.at(2)[0].values.at("loss"), 5);
  EXPECT_FALSE(rounds.at(1)[0].values.contains("note"));
}

TEST(MetricsReader, AnAttemptReplacesWhatEarlierOnesMadeFromItsFirstStepOn) {
  const TemporaryDirectory directory;
  write_text(directory / "metrics.9.jsonl",
             row(1, 1, 90) + row(1, 2, 91) + row(1, 3, 92) + row(1, 4, 93) + row(2, 1, 94));
  write_text(directory / "metrics.10.jsonl", row(1, 2, 101) + row(1, 3, 102));
  write_text(directory / "metrics.11.jsonl", "");  // an attempt that only evaluated
  const auto rounds = read_metrics(directory.path());
  ASSERT_EQ(rounds.size(), 1U);  // without the abandoned branch's round
  const auto& rows = rounds.at(1);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].values.at("loss"), 90);
  EXPECT_EQ(rows[1].values.at("loss"), 101);
  EXPECT_EQ(rows[2].values.at("loss"), 102);
}

TEST(MetricsReader, OtherFilesAreNoMetrics) {
  const TemporaryDirectory directory;
  for (const char* name : {"metrics.jsonl", "metrics..jsonl", "metrics.x.jsonl", "metrics.1x.jsonl",
                           "metrics.1.jsonl.bak", "metrics.-1.jsonl", "my.metrics.1.jsonl"}) {
    write_text(directory / name, "no JSON\n");
  }
  EXPECT_THAT(read_metrics(directory.path()), IsEmpty());
}

TEST(MetricsReader, ATornLastLineIsIgnored) {
  const TemporaryDirectory directory;
  const std::string next = row(1, 2, 3);
  for (std::size_t kept = 0; kept < next.size(); ++kept) {
    write_text(directory / "metrics.1.jsonl", row(1, 1, 4) + next.substr(0, kept));
    ASSERT_EQ(read_metrics(directory.path()).at(1).size(), 1U) << kept;
  }
}

TEST(MetricsReader, AnyOtherBadLineIsNamed) {
  const TemporaryDirectory directory;
  for (const char* bad : {"", "{\"round\": 1, \"st", "[]", "7", "{\"round\": 1}", "{\"step\": 1}",
                          "{\"round\": \"one\", \"step\": 1}", "{\"round\": 1, \"step\": null}"}) {
    write_text(directory / "metrics.1.jsonl", row(1, 1, 4) + bad + "\n" + row(1, 2, 3));
    EXPECT_THAT(test::message_of<DataError>([&] { return read_metrics(directory.path()); }),
                HasSubstr("metrics.1.jsonl:2"))
        << "accepted: " << bad;
  }
}

}  // namespace
}  // namespace jforge
