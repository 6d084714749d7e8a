#include "workers/evaluate/sample_grader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>

#include "runtime/error.h"

namespace jforge {
namespace {

/// The answer is the text before the stop text.
class FakeTask final : public Task {
 public:
  explicit FakeTask(bool runs_code) : runs_code_(runs_code) {}
  [[nodiscard]] std::string name() const override { return "fake"; }
  [[nodiscard]] std::string version() const override { return "fake/1"; }
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path&) const override {
    return {};
  }
  [[nodiscard]] TaskPrompt prompt(const TaskRecord&) const override { return {}; }
  [[nodiscard]] std::int64_t default_max_new_tokens() const override { return 1; }
  [[nodiscard]] std::vector<std::string> stop_texts() const override { return {"STOP", "\n\n"}; }
  [[nodiscard]] std::optional<std::string> extract(std::string_view completion,
                                                   const TaskRecord&) const override {
    return std::string(completion);
  }
  [[nodiscard]] bool runs_code() const override { return runs_code_; }
  [[nodiscard]] Verdict grade(const std::optional<std::string>& answer, const TaskRecord& record,
                              CodeRunner* runner) const override {
    Verdict verdict;
    verdict.answer = answer;
    verdict.rules = {{"length", answer->size() > 2}};
    if (record.id == "broken") {
      throw DataError("the record has no answer");
    }
    if (runs_code_) {
      CodeRunRequest program;
      program.candidate = *answer;
      const CodeRunResult result = runner->run(program);
      verdict.status =
          result.status == CodeRunStatus::completed ? VerdictStatus::pass : VerdictStatus::fail;
      verdict.reason = result.reason;
      verdict.base_status = VerdictStatus::pass;
    }
    return verdict;
  }

 private:
  bool runs_code_;
};

/// A millisecond per letter; odd lengths fail.
class FakeRunner final : public CodeRunner {
 public:
  [[nodiscard]] CodeRunResult run(const CodeRunRequest& request, const CodeValueSink&) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(request.candidate.size()));
    CodeRunResult result;
    if (request.candidate.size() % 2 == 0) {
      result.status = CodeRunStatus::completed;
    } else {
      result.reason = "odd";
    }
    return result;
  }
};

GradedSample decoded(std::int64_t index, const std::string& text) {
  GradedSample sample{.run = 3, .sample = {}};
  sample.sample.record.index = index;
  sample.sample.record.text = text;
  return sample;
}

TEST(SampleGrader, CodeIsGradedBesideTheCallerAndEachSampleComesOutOnce) {
  FakeRunner runner;
  const FakeTask task(true);
  const TaskRecord problem{"fake/0", {}};
  SampleGrader grader(&runner, 3);
  for (std::int64_t i = 0; i < 30; ++i) {
    grader.add(task, problem, decoded(i, std::string(static_cast<std::size_t>(i), 'x') + "STOP!"));
  }
  std::set<std::int64_t> seen;
  while (grader.pending()) {
    for (const GradedSample& graded : grader.take()) {
      const SampleRecord& record = graded.sample.record;
      EXPECT_TRUE(seen.insert(record.index).second);
      EXPECT_EQ(graded.run, 3U);
      EXPECT_EQ(record.answer, std::string(static_cast<std::size_t>(record.index), 'x'));
      EXPECT_EQ(record.verdict, record.index % 2 == 0 ? "pass" : "fail");
      EXPECT_EQ(record.reason, record.index % 2 == 0 ? "" : "odd");
      EXPECT_EQ(record.base_verdict, "pass");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(seen.size(), 30U);
}

TEST(SampleGrader, OtherTasksAreGradedAtOnceAndNeedNoRunner) {
  const FakeTask task(false);
  const TaskRecord problem{"fake/0", {}};
  SampleGrader grader(nullptr, 1);
  grader.add(task, problem, decoded(7, "one\n\ntwo"));
  const auto graded = grader.take();
  ASSERT_EQ(graded.size(), 1U);
  EXPECT_EQ(graded[0].sample.record.answer, "one");
  EXPECT_EQ(graded[0].sample.record.rules, (decltype(Verdict::rules){{"length", true}}));
  EXPECT_FALSE(graded[0].sample.record.base_verdict.has_value());
  EXPECT_FALSE(grader.pending());
}

TEST(SampleGrader, WhatGradingThrowsReachesTheCaller) {
  FakeRunner runner;
  const FakeTask task(true);
  const TaskRecord problem{"broken", {}};
  SampleGrader grader(&runner, 1);
  EXPECT_THROW(
      {
        grader.add(task, problem, decoded(0, "x"));
        for (;;) {
          (void)grader.take();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      },
      DataError);
}

}  // namespace
}  // namespace jforge
