#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/tasks/task.h"
#include "runtime/error.h"
#include "tests/support/test_data.h"
#include "workers/evaluate/sandbox/grading_pool.h"
#include "workers/evaluate/sandbox/sandbox.h"

namespace jforge {

/// Skipped without benchmark files or sandbox.
class BenchmarkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_TEST_DATA("humaneval");
    try {
      sandbox_ = std::make_unique<Sandbox>();
    } catch (const EnvironmentError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  std::vector<Verdict> grade(const Task& task, const std::vector<TaskRecord>& records,
                             const std::vector<std::string>& programs) {
    std::vector<Verdict> verdicts(records.size());
    GradingPool pool(sandbox_.get(), std::min(2, share_of_cores(1)));
    for (std::size_t i = 0; i < records.size(); ++i) {
      pool.submit(static_cast<std::int64_t>(i), task, programs[i], records[i]);
    }
    for (GradedAnswer& graded : pool.drain()) {
      verdicts[static_cast<std::size_t>(graded.ticket)] = std::move(graded.verdict);
    }
    return verdicts;
  }

  /// Names exceptions with their reason.
  static void expect_all(bool pass, const std::vector<TaskRecord>& records,
                         const std::vector<Verdict>& verdicts) {
    for (std::size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(verdicts[i].status == VerdictStatus::pass, pass)
          << records[i].id << " (" << records[i].fields.at("task_id")
          << "): " << to_string(verdicts[i].status) << ", " << verdicts[i].reason;
    }
  }

  const std::filesystem::path data_ = test::test_data();
  std::unique_ptr<Sandbox> sandbox_;
};

inline std::string canonical_program(const TaskRecord& record) {
  const auto code = record.fields.find("code");
  return code != record.fields.end()
             ? code->second
             : record.fields.at("prompt") + record.fields.at("canonical_solution");
}

inline std::string empty_function(const std::string& name) {
  return fmt::format("def {}(*args, **named):\n    pass\n", name);
}

inline std::vector<TaskRecord> every(std::size_t step, const std::vector<TaskRecord>& records) {
  std::vector<TaskRecord> chosen;
  for (std::size_t i = 0; i < records.size(); i += step) {
    chosen.push_back(records[i]);
  }
  return chosen;
}

template <typename Program>
std::vector<std::string> programs_of(const std::vector<TaskRecord>& records, Program program) {
  std::vector<std::string> programs;
  for (const TaskRecord& record : records) {
    programs.push_back(program(record));
  }
  return programs;
}

}  // namespace jforge
