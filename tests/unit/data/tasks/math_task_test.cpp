#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "data/tasks/math/answer_number.h"
#include "data/tasks/task.h"
#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_data.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const TaskRecord kRecord{"math500/0", {{"problem", "How many?"}, {"answer", "\\frac{1}{2}"}}};

TEST(MathTask, PromptStyles) {
  const auto evalchemy = make_task("math500");
  ASSERT_EQ(evalchemy->prompt(kRecord).messages.size(), 1u);
  EXPECT_EQ(evalchemy->prompt(kRecord).messages[0].role, "user");
  EXPECT_EQ(evalchemy->prompt(kRecord).messages[0].content,
            "Problem: How many?\nMark your solution with \\boxed\nAnswer:");
  EXPECT_EQ(evalchemy->version(), "math500/evalchemy/answer-2/equal-4");
  EXPECT_EQ(make_task("math500", {.prompt_style = "evalchemy"})->version(), evalchemy->version());
  EXPECT_TRUE(evalchemy->stop_texts().empty());
  EXPECT_FALSE(evalchemy->runs_code());

  const auto qwen = make_task("math", {.prompt_style = "qwen"});
  EXPECT_EQ(qwen->version(), "math/qwen/answer-2/equal-4");
  ASSERT_EQ(qwen->prompt(kRecord).messages.size(), 2u);
  EXPECT_EQ(qwen->prompt(kRecord).messages[0].content,
            "Please reason step by step, and put your final answer within \\boxed{}.");
  EXPECT_EQ(qwen->prompt(kRecord).messages[1].content, "How many?");

  const auto shots = make_task("math", {.prompt_style = "4-shot"});
  const TaskPrompt prompt = shots->prompt(kRecord);
  EXPECT_TRUE(prompt.messages.empty());
  EXPECT_TRUE(prompt.prefix.starts_with("Problem:\n"));
  EXPECT_TRUE(prompt.prefix.ends_with("\n\nProblem:\nHow many?\n\nSolution:"));
  EXPECT_EQ(shots->stop_texts(), std::vector<std::string>{"Problem:"});
  EXPECT_EQ(shots->version(), "math/4-shot-own-shots-1/answer-2/equal-4");
  EXPECT_EQ(shots->default_max_new_tokens(), 1024);
  EXPECT_EQ(qwen->default_max_new_tokens(), 2048);
  EXPECT_EQ(evalchemy->default_max_new_tokens(), 4096);
  std::size_t finals = 0;
  for (std::size_t at = 0;
       (at = prompt.prefix.find("I hope it is correct.", at)) != std::string::npos; ++at) {
    ++finals;
  }
  EXPECT_EQ(finals, 4u);
  EXPECT_THROW(static_cast<void>(make_task("math", {.prompt_style = "loud"})), ConfigError);
  EXPECT_THAT(test::message_of<ConfigError>(
                  [&] { return make_task("math500", {.prompt_style = "lm-eval"}); }),
              HasSubstr("task math500: prompt style 'lm-eval' is now called '4-shot'"));
}

/// Status and accepting rules.
std::string rules_of(const Verdict& verdict) {
  std::string text(to_string(verdict.status));
  for (const auto& [rule, right] : verdict.rules) {
    text += right ? " " + rule : "";
  }
  return text;
}

TEST(MathTask, EveryRuleJudgesAndTheStringRuleDecides) {
  const auto task = make_task("math500");
  const auto verdict = [&](const std::string& completion) {
    return task->grade(task->extract(completion, kRecord), kRecord, nullptr);
  };
  EXPECT_EQ(rules_of(verdict("\\boxed{\\frac{1}{2}}")), "pass string minerva");
  EXPECT_EQ(rules_of(verdict("\\boxed{0.5}")), "pass string");
  EXPECT_EQ(rules_of(verdict("\\boxed{\\frac{3}{6}}")), "fail");
  EXPECT_EQ(rules_of(verdict("\\boxed{ $\\frac{1}{2}$. }")), "fail minerva");
  EXPECT_EQ(rules_of(verdict("\\boxed{\\frac12\\text{ or }3}")), "pass string");
  EXPECT_EQ(rules_of(verdict("\\boxed{2}")), "fail");
  EXPECT_EQ(rules_of(verdict("I do not know")), "fail");
  EXPECT_EQ(verdict("none").rules.size(), 2u);
  EXPECT_EQ(verdict("\\boxed{0.5}").reason, "");
  EXPECT_EQ(verdict("\\boxed{\\frac{3}{6}}").answer, "\\frac{3}{6}");
  EXPECT_EQ(verdict("\\boxed{2}").reason, "2 instead of \\frac{1}{2}");
  EXPECT_EQ(verdict("I do not know").status, VerdictStatus::fail);
  EXPECT_THAT(verdict("I do not know").reason, HasSubstr("no answer"));
  EXPECT_EQ(verdict("\\boxed{9^{9^{9^9}}}").status, VerdictStatus::fail);
  const std::string lines = verdict("\\boxed{1\n\n2" + std::string(1 << 20, '3') + "}").reason;
  EXPECT_LT(lines.size(), 300u);
  EXPECT_EQ(lines.find('\n'), std::string::npos);
  const TaskRecord broken{"math500/3", {{"problem", "p"}, {"answer", " "}}};
  EXPECT_THROW(static_cast<void>(task->grade("7", broken, nullptr)), DataError);
}

TEST(MathTask, FilesAreFoundAndBadOnesRefused) {
  const test::TemporaryDirectory directory;
  fs::create_directories(directory.path() / "math");
  const auto put = [&](const char* name, const std::string& text) {
    std::ofstream(directory.path() / "math" / name) << text;
  };
  const auto failure = [&](const char* name) {
    return test::message_of<DataError>([&] { return make_task(name)->load(directory.path()); });
  };
  EXPECT_THAT(failure("math500"), HasSubstr("math/math500.jsonl"));
  put("math500.jsonl", R"({"problem":"a","answer":"1"})"
                       "\n");
  const auto records = make_task("math500")->load(directory.path());
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].id, "math500/0");
  put("math500.jsonl", R"({"problem":"a","answer":""})"
                       "\n");
  EXPECT_THAT(failure("math500"), HasSubstr("math500/0"));
  put("math500.jsonl", R"({"problem":"a"})"
                       "\n");
  EXPECT_THAT(failure("math500"), HasSubstr("math500.jsonl:1"));
  put("test.jsonl", R"({"problem":"a","level":"Level 1","type":"Algebra","solution":"no box"})"
                    "\n");
  EXPECT_THAT(failure("math"), HasSubstr("no \\boxed answer"));
  put("test.jsonl", "nonsense\n");
  EXPECT_THAT(failure("math"), HasSubstr("test.jsonl:1"));
}

TEST(MathTask, All5000GoldAnswersAreRight) {
  SKIP_WITHOUT_TEST_DATA("math/math500.jsonl");
  const auto task = make_task("math");
  const auto records = task->load(test::test_data());
  ASSERT_EQ(records.size(), 5000u);
  for (const TaskRecord& record : records) {
    const std::string& solution = record.fields.at("solution");
    const auto verdict = task->grade(task->extract(solution, record), record, nullptr);
    EXPECT_EQ(rules_of(verdict), "pass string minerva") << record.id << " " << verdict.reason;
    const std::string other = "1+" + std::string(*last_boxed(solution));
    EXPECT_EQ(task->grade(other, record, nullptr).status, VerdictStatus::fail)
        << record.id << " " << other;
  }
}

TEST(MathTask, All500AnswersEqualThoseOfTheirSolutions) {
  SKIP_WITHOUT_TEST_DATA("math/math500.jsonl");
  const auto solutions = load_task_records(test::test_data(), "math500", {"math/math500.jsonl"},
                                           {"problem", "solution"});
  for (const char* style : {"evalchemy", "qwen", "4-shot"}) {
    const auto task = make_task("math500", {.prompt_style = style});
    const auto records = task->load(test::test_data());
    ASSERT_EQ(records.size(), 500u);
    for (std::size_t i = 0; i < records.size(); ++i) {
      const std::string& solution = solutions[i].fields.at("solution");
      const auto verdict = task->grade(task->extract(solution, records[i]), records[i], nullptr);
      EXPECT_EQ(verdict.status, VerdictStatus::pass) << records[i].id << " " << verdict.reason;
      const std::string& next = records[(i + 1) % records.size()].fields.at("answer");
      if (next != records[i].fields.at("answer") && next.find('=') == std::string::npos) {
        EXPECT_EQ(rules_of(task->grade(next, records[i], nullptr)), "fail")
            << records[i].id << " " << next;
      }
    }
  }
}

}  // namespace
}  // namespace jforge
