#include "workers/evaluate/sandbox/remembered_runs.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace jforge::test {
namespace {

namespace fs = std::filesystem;

/// Answers each call with its number.
class NumberingRunner final : public CodeRunner {
 public:
  explicit NumberingRunner(int& runs) : runs_(runs) {}
  CodeRunResult run(const CodeRunRequest& request, const CodeValueSink& sink = {}) override {
    ++runs_;
    CodeRunResult result{.status = CodeRunStatus::completed, .reason = {}, .call_seconds = {}};
    if (request.candidate == "broken") {
      result.status = CodeRunStatus::failed;
      return result;
    }
    for (const std::string& call : request.calls) {
      if (sink && !sink(result.calls_returned, "{\"int\": \"" + call + "\"}")) {
        result.status = CodeRunStatus::failed;
        result.reason = "value of call " + std::to_string(result.calls_returned) + " not accepted";
        return result;
      }
      ++result.calls_returned;
      result.call_seconds.push_back(0.1 * static_cast<double>(result.calls_returned));
    }
    return result;
  }

 private:
  int& runs_;
};

class RememberedRunsTest : public ::testing::Test {
 protected:
  /// Simulates a new process.
  std::vector<std::string> run(const CodeRunRequest& request, const std::string& environment = "e",
                               std::int64_t accepted = 100) {
    RememberedRuns runner(std::make_unique<NumberingRunner>(runs_), environment,
                          directory_ / "runs");
    std::vector<std::string> values;
    result_ = runner.run(request, [&](std::int64_t call, std::string_view value) {
      values.emplace_back(value);
      return call < accepted;
    });
    return values;
  }
  [[nodiscard]] std::vector<fs::path> files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(directory_ / "runs")) {
      files.push_back(entry.path());
    }
    return files;
  }

  const CodeRunRequest request_{.candidate = "def f(x): return x",
                                .check = "",
                                .entry_point = "f",
                                .calls = {"1", "2", "3"},
                                .call_seconds = {},
                                .repeatable = true};
  TemporaryDirectory directory_;
  int runs_ = 0;
  CodeRunResult result_;
};

TEST_F(RememberedRunsTest, TheSecondUseRunsNothing) {
  const auto first = run(request_);
  const CodeRunResult before = result_;
  EXPECT_EQ(runs_, 1);
  EXPECT_EQ(run(request_), first);
  EXPECT_EQ(runs_, 1);
  EXPECT_EQ(result_.status, CodeRunStatus::completed);
  EXPECT_EQ(result_.calls_returned, 3);
  EXPECT_EQ(result_.call_seconds, before.call_seconds);
  EXPECT_EQ(run(request_, "e", 1).size(), 2U);  // refused at the second value
  EXPECT_EQ(result_.status, CodeRunStatus::failed);
  EXPECT_EQ(result_.reason, "value of call 1 not accepted");
  EXPECT_EQ(runs_, 1);
}

TEST_F(RememberedRunsTest, WhateverIsDifferentRuns) {
  (void)run(request_);
  std::vector<CodeRunRequest> others(9, request_);
  others[0].candidate += "\n";
  others[1].check = "pass";
  others[2].entry_point = "g";
  others[3].calls = {"1", "2", "4"};
  others[4].check_seconds = 4.0;
  others[5].call_seconds = {1.0, 1.0, 2.0};
  others[6].total_seconds = 61.0;
  others[7].memory_bytes += 1;
  others[8].hash_seed = 1;
  for (std::size_t i = 0; i < others.size(); ++i) {
    (void)run(others[i]);
    EXPECT_EQ(runs_, 2 + static_cast<int>(i)) << i;
  }
  (void)run(request_, "another Python");
  EXPECT_EQ(runs_, 11);
  (void)run(request_);
  EXPECT_EQ(runs_, 11);
}

TEST_F(RememberedRunsTest, OnlyRepeatableCompletedRunsAreKept) {
  CodeRunRequest once = request_;
  once.repeatable = false;
  CodeRunRequest broken = request_;
  broken.candidate = "broken";
  for (int repeat = 1; repeat <= 2; ++repeat) {
    (void)run(once);
    (void)run(broken);
    (void)run(request_, "e", 1);
    EXPECT_EQ(runs_, 3 * repeat);
  }
  EXPECT_FALSE(fs::exists(directory_ / "runs"));
}

TEST_F(RememberedRunsTest, ADamagedRecordIsMadeAgain) {
  const auto first = run(request_);
  const fs::path file = files().at(0);
  std::ifstream in(file, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::string flipped = whole;
  flipped[whole.find("\"values\"") + 16] ^= 1;
  const std::string unsealed = whole.substr(0, whole.rfind(",")) + "}\n";
  int runs = 1;
  for (const std::string& damaged :
       {flipped, whole.substr(0, whole.size() / 2), unsealed, std::string()}) {
    std::ofstream(file, std::ios::binary) << damaged;
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(run(request_), first);
    EXPECT_NE(::testing::internal::GetCapturedStdout().find("the run is repeated"),
              std::string::npos);
    EXPECT_EQ(runs_, ++runs);
    EXPECT_EQ(run(request_), first);
    EXPECT_EQ(runs_, runs);
  }
  CodeRunRequest other = request_;  // Valid, but another request's.
  other.calls = {"1", "2", "4"};
  (void)run(other);
  for (const fs::path& each : files()) {
    if (each != file) {
      fs::copy_file(file, each, fs::copy_options::overwrite_existing);
    }
  }
  EXPECT_EQ(run(other).at(2), "{\"int\": \"4\"}");
}

TEST_F(RememberedRunsTest, AFolderThatCannotBeWrittenOnlyCostsTheRun) {
  std::ofstream(directory_ / "runs") << "a file";
  EXPECT_EQ(run(request_).size(), 3U);
  EXPECT_EQ(run(request_).size(), 3U);
  EXPECT_EQ(runs_, 2);
}

}  // namespace
}  // namespace jforge::test
