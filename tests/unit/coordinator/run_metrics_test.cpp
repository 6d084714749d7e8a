#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>
#include <string>

#include "coordinator/run_journal.h"
#include "runtime/read_file.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

nlohmann::json running() {
  return {{"status", "running"},  {"phase", "train round 1"},
          {"attempt", 2},         {"ranks", 4},
          {"host", "node7"},      {"version", "1.2.3"},
          {"step", 120},          {"total", 500},
          {"unit", "steps"},      {"eta_seconds", 12.5},
          {"detail", "loss 1.2"}, {"tokens_per_second", 4321.0}};
}

TEST(RunMetrics, HoldWhatRunJsonHolds) {
  const std::string text = run_metrics("runs/a", running());
  EXPECT_THAT(text, HasSubstr("jforge_run_status{run=\"runs/a\",status=\"running\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("jforge_run_status{run=\"runs/a\",status=\"failed\"} 0\n"));
  EXPECT_THAT(text,
              HasSubstr("jforge_run_info{run=\"runs/a\",phase=\"train round 1\",unit=\"steps\","
                        "host=\"node7\",version=\"1.2.3\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("jforge_run_phase_done{run=\"runs/a\"} 120\n"));
  EXPECT_THAT(text, HasSubstr("jforge_run_phase_total{run=\"runs/a\"} 500\n"));
  EXPECT_THAT(text, HasSubstr("jforge_run_phase_eta_seconds{run=\"runs/a\"} 12.5\n"));
}

TEST(RunMetrics, WhatIsNotKnownHasNoSample) {
  const std::string text = run_metrics("a", {{"status", "finished"}});
  EXPECT_THAT(text, Not(HasSubstr("jforge_run_phase_done")));
  EXPECT_THAT(text, Not(HasSubstr("null")));
  EXPECT_THAT(text, HasSubstr("status=\"finished\"} 1\n"));
}

TEST(RunMetrics, LabelsAreEscapedAndAnErrorIsNoLabel) {
  EXPECT_THAT(run_metrics("a\"b\\c\nd", running()), HasSubstr("{run=\"a\\\"b\\\\c\\nd\""));
  EXPECT_THAT(run_metrics("a", {{"status", "failed"}, {"phase", "rank 1: disk full"}}),
              Not(HasSubstr("disk full")));
}

// As the collector wants them, and without timestamps.
TEST(RunMetrics, EveryMetricIsDeclaredOnceBeforeItsSamples) {
  std::set<std::string> declared;
  std::istringstream lines(run_metrics("a", running()));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      const std::string name = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(declared.insert(name).second) << line;
    } else if (!line.starts_with('#')) {
      EXPECT_TRUE(declared.contains(line.substr(0, line.find('{')))) << line;
      EXPECT_EQ(line.find(' ', line.rfind('}')), line.rfind(' ')) << line;
    }
  }
  EXPECT_EQ(declared.size(), 9U);
}

TEST(RunMetrics, AreReplacedWhole) {
  const test::TemporaryDirectory directory;
  write_run_metrics(directory.path(), running());
  write_run_metrics(directory.path(), {{"status", "finished"}});
  const std::string text = read_file(directory.path() / "metrics.prom");
  EXPECT_THAT(text, HasSubstr("status=\"finished\"} 1\n"));
  EXPECT_TRUE(text.ends_with('\n'));
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    ++files;
  }
  EXPECT_EQ(files, 1U) << "no temporary file stays";
}

}  // namespace
}  // namespace jforge
