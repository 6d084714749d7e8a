#include "data/tasks/math/word_problems_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;

TEST(WordProblemsTask, PutsTheQuestionAloneAndNamesItsRule) {
  const auto task = make_task("word_problems");
  const TaskRecord record{"word_problems/0", {{"question", "How many?"}, {"answer", "#### 7"}}};
  EXPECT_EQ(task->name(), "word_problems");
  EXPECT_EQ(task->version(), "word_problems/number/extract-4");
  const TaskPrompt prompt = task->prompt(record);
  ASSERT_EQ(prompt.messages.size(), 1u);
  EXPECT_EQ(prompt.messages[0].role, "user");
  EXPECT_EQ(prompt.messages[0].content, "How many?");
  EXPECT_EQ(prompt.prefix, "");
  EXPECT_TRUE(task->stop_texts().empty());
  EXPECT_THAT(task_names(), ::testing::Contains("word_problems"));
}

TEST(WordProblemsTask, LedgerHasItsOwnNameFolderAndLength) {
  const test::TemporaryDirectory directory;
  fs::create_directories(directory / "ledger");
  std::ofstream(directory / "ledger/test.jsonl")
      << "{\"question\":\"a\",\"answer\":\"At the start: 3.\\nTo Ben: 3 - 1 = 2.\\n#### 2\"}\n";
  const auto task = make_task("ledger");
  EXPECT_EQ(task->name(), "ledger");
  EXPECT_EQ(task->version(), "ledger/number/extract-4");
  EXPECT_GT(task->default_max_new_tokens(), make_task("word_problems")->default_max_new_tokens());
  const auto records = task->load(directory.path());
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].id, "ledger/0");
  EXPECT_EQ(
      task->grade(task->extract("To Ben: 3 - 1 = 2.\n#### 2", records[0]), records[0], nullptr)
          .status,
      VerdictStatus::pass);
  EXPECT_EQ(
      task->grade(task->extract("To Ben: 3 - 1 = 2.\n#### 1", records[0]), records[0], nullptr)
          .status,
      VerdictStatus::fail);
  EXPECT_THROW(static_cast<void>(make_task("word_problems")->load(directory.path())), DataError);
}

TEST(WordProblemsTask, AGoldAnswerWithoutANumberIsRefusedBeforeAnythingIsGraded) {
  const test::TemporaryDirectory directory;
  const fs::path file = directory / "test.jsonl";
  std::ofstream(file) << R"({"question":"a","answer":"#### 2"})" << '\n'
                      << R"({"question":"b","answer":"5"})" << '\n';
  for (const char* name : {"word_problems", "gsm8k"}) {
    EXPECT_THAT(test::message_of<DataError>([&] { return make_task(name)->load(file); }),
                ::testing::AllOf(::testing::HasSubstr(file.string()),
                                 ::testing::HasSubstr(std::string(name) + "/1")))
        << name;
  }
}

TEST(WordProblemsTask, GradesNumbersByThePlainRuleOfGsm8k) {
  const auto task = make_task("word_problems", {.prompt_style = "plain"});
  const auto gsm8k = make_task("gsm8k", {.prompt_style = "plain"});
  const TaskRecord record{"word_problems/0", {{"question", "q"}, {"answer", "a\n#### 12"}}};
  for (const char* completion :
       {"3 * 4 = 12\n#### 12", "#### 12.0", "It is 12", "#### 13", "", "#### x 12",
        "#### 12\n#### 13", "\\boxed{12} of 99", "#### -12"}) {
    const auto answer = task->extract(completion, record);
    EXPECT_EQ(answer, gsm8k->extract(completion, record)) << completion;
    const Verdict verdict = task->grade(answer, record, nullptr);
    EXPECT_EQ(verdict.status, gsm8k->grade(answer, record, nullptr).status) << completion;
  }
  EXPECT_EQ(task->grade("12", record, nullptr).status, VerdictStatus::pass);
  EXPECT_EQ(task->grade("13", record, nullptr).reason, "13 instead of 12");
}

TEST(WordProblemsTask, OtherStylesAreRefused) {
  for (const char* style : {"evalchemy", "cot_boxed", "lm-eval"}) {
    EXPECT_THAT(test::message_of<ConfigError>(
                    [&] { return make_task("word_problems", {.prompt_style = style}); }),
                ::testing::AllOf(::testing::HasSubstr(style), ::testing::HasSubstr("plain")))
        << style;
  }
}

TEST(WordProblemsTask, FindsItsOwnFolderOnly) {
  const test::TemporaryDirectory directory;
  const auto put = [&](const fs::path& name) {
    fs::create_directories((directory / name).parent_path());
    std::ofstream(directory / name) << "{\"question\":\"a\",\"answer\":\"#### 1\"}\n";
  };
  const auto task = make_task("word_problems");
  put("gsm8k/test.jsonl");
  EXPECT_THAT(test::message_of<DataError>([&] { return task->load(directory.path()); }),
              ::testing::HasSubstr("word_problems/test.jsonl"))
      << "GSM8K's file was taken";
  put("word_problems/test.jsonl");
  for (const fs::path& data :
       {directory.path(), directory / "word_problems", directory / "word_problems/test.jsonl"}) {
    const auto records = task->load(data);
    ASSERT_EQ(records.size(), 1u) << data;
    EXPECT_EQ(records[0].id, "word_problems/0");
  }
}

}  // namespace
}  // namespace jforge
