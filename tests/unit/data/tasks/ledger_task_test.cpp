#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "data/tasks/task.h"
#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;

TEST(LedgerTask, PutsTheQuestionAloneAndNamesItsRule) {
  const auto task = make_task("ledger");
  const TaskRecord record{"ledger/0", {{"question", "How many?"}, {"answer", "#### 7"}}};
  EXPECT_EQ(task->name(), "ledger");
  EXPECT_EQ(task->version(), "ledger/number/extract-4");
  const TaskPrompt prompt = task->prompt(record);
  ASSERT_EQ(prompt.messages.size(), 1u);
  EXPECT_EQ(prompt.messages[0].role, "user");
  EXPECT_EQ(prompt.messages[0].content, "How many?");
  EXPECT_EQ(prompt.prefix, "");
  EXPECT_TRUE(task->stop_texts().empty());
  EXPECT_THAT(task_names(), ::testing::Contains("ledger"));
}

TEST(LedgerTask, AGoldAnswerWithoutANumberIsRefusedBeforeAnythingIsGraded) {
  const test::TemporaryDirectory directory;
  const fs::path file = directory / "test.jsonl";
  std::ofstream(file) << R"({"question":"a","answer":"#### 2"})" << '\n'
                      << R"({"question":"b","answer":"5"})" << '\n';
  for (const char* name : {"ledger", "gsm8k"}) {
    EXPECT_THAT(test::message_of<DataError>([&] { return make_task(name)->load(file); }),
                ::testing::AllOf(::testing::HasSubstr(file.string()),
                                 ::testing::HasSubstr(std::string(name) + "/1")))
        << name;
  }
}

TEST(LedgerTask, GradesNumbersByThePlainRuleOfGsm8k) {
  const auto task = make_task("ledger", {.prompt_style = "plain"});
  const auto gsm8k = make_task("gsm8k", {.prompt_style = "plain"});
  const TaskRecord record{"ledger/0", {{"question", "q"}, {"answer", "a\n#### 12"}}};
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

TEST(LedgerTask, OtherStylesAreRefused) {
  for (const char* style : {"evalchemy", "cot_boxed", "lm-eval"}) {
    EXPECT_THAT(
        test::message_of<ConfigError>([&] { return make_task("ledger", {.prompt_style = style}); }),
        ::testing::AllOf(::testing::HasSubstr(style), ::testing::HasSubstr("plain")))
        << style;
  }
}

TEST(LedgerTask, FindsItsOwnFolderOnly) {
  const test::TemporaryDirectory directory;
  const auto put = [&](const fs::path& name) {
    fs::create_directories((directory / name).parent_path());
    std::ofstream(directory / name) << "{\"question\":\"a\",\"answer\":\"#### 1\"}\n";
  };
  const auto task = make_task("ledger");
  put("gsm8k/test.jsonl");
  EXPECT_THAT(test::message_of<DataError>([&] { return task->load(directory.path()); }),
              ::testing::HasSubstr("ledger/test.jsonl"))
      << "GSM8K's file was taken";
  put("ledger/test.jsonl");
  for (const fs::path& data :
       {directory.path(), directory / "ledger", directory / "ledger/test.jsonl"}) {
    const auto records = task->load(data);
    ASSERT_EQ(records.size(), 1u) << data;
    EXPECT_EQ(records[0].id, "ledger/0");
  }
}

}  // namespace
}  // namespace jforge
