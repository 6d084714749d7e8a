#include "workers/grade/completion_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/durable_file.h"
#include "tests/unit/workers/grade/completion_fixture.h"

namespace jforge {
namespace {

using test::CompletionFixture;
using test::TemporaryDirectory;

TEST(CompletionSet, KeysTellWhatAVerdictDependsOn) {
  CompletionFixture fixture;
  const CompletionSet set = fixture.load({"a", "b", "c", "a", "x"});
  ASSERT_EQ(set.completions.size(), 5U);
  EXPECT_EQ(set.names.at(1), "HumanEval/1");
  EXPECT_EQ(set.completions[4].problem, 1U);
  EXPECT_EQ(set.completions[0].key, set.completions[3].key)
      << "the same answer to the same problem";
  EXPECT_NE(set.completions[1].key, set.completions[4].key) << "another answer";

  const CompletionSet longer = fixture.load({"a", "b", "c", "a", "x", "y"});
  EXPECT_NE(longer.hash, set.hash);
  for (std::size_t index = 0; index < set.completions.size(); ++index) {
    EXPECT_EQ(longer.completions[index].key, set.completions[index].key) << index;
  }
  const CompletionSet same_answer = fixture.load({"a", "a"});
  EXPECT_NE(same_answer.completions[0].key, same_answer.completions[1].key) << "another problem";

  fixture.write_problems("assert");
  const CompletionSet other = fixture.load({"a", "b", "c", "a", "x"});
  EXPECT_NE(other.hash, set.hash);
  for (std::size_t index = 0; index < set.completions.size(); ++index) {
    EXPECT_NE(other.completions[index].key, set.completions[index].key) << "another test";
  }
}

TEST(CompletionSet, TheSameTextUnderAnotherTaskHasAnotherKey) {
  const CompletionFixture fixture;
  replace_file(fixture.directory / "questions.jsonl", R"({"question": "q", "answer": "#### 4"})"
                                                      "\n");
  replace_file(fixture.directory / "answers.jsonl",
               R"({"task_id": "0", "completion": "The answer is 4."})"
               "\n");
  const auto load = [&](const std::string& task) {
    return load_completions({.task = task,
                             .data = fixture.directory / "questions.jsonl",
                             .completions = fixture.directory / "answers.jsonl"});
  };
  EXPECT_NE(load("gsm8k").completions.at(0).key, load("ledger").completions.at(0).key);
  EXPECT_EQ(load("gsm8k").version, make_task("gsm8k")->version());
}

/// Equal programs share a verdict.
TEST(CompletionSet, ProgramsTakenAsTheyAreBearNoStylesName) {
  const CompletionFixture fixture;
  const CompletionSet bare = fixture.load({"a"});
  EXPECT_EQ(bare.version, "humaneval/completion/bare-check-3s");
  const auto styled = [&](const std::string& style) {
    return load_completions({.task = "humaneval:" + style,
                             .data = fixture.directory / "HumanEval.jsonl",
                             .completions = fixture.directory / "completions.jsonl",
                             .allow_missing = true});
  };
  EXPECT_EQ(styled("lm-eval").version,
            make_task("humaneval", {.prompt_style = "lm-eval"})->version());
  EXPECT_EQ(styled("lm-eval").completions.at(0).key, bare.completions.at(0).key);
  EXPECT_NE(styled("evalchemy").completions.at(0).key, bare.completions.at(0).key);
}

TEST(CompletionSet, ACompletionEndsAtItsStylesStopTexts) {
  const TemporaryDirectory directory;
  std::string records;
  for (int index = 0; index < 5; ++index) {  // as many as the style's examples
    records += R"({"question": "q", "answer": "#### 18"})"
               "\n";
  }
  replace_file(directory / "test.jsonl", records);
  replace_file(directory / "train.jsonl", records);
  replace_file(directory / "answers.jsonl",
               R"({"task_id": "0", "completion": "9 + 9 = 18\n\nQuestion: Ann has 5 eggs."})"
               "\n");
  const CompletionSet set = load_completions({.task = "gsm8k:lm-eval-flexible",
                                              .data = directory.path(),
                                              .completions = directory / "answers.jsonl",
                                              .allow_missing = true});
  EXPECT_EQ(set.completions.at(0).answer, "18");
}

}  // namespace
}  // namespace jforge
