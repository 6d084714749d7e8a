#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "data/tasks/task.h"
#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_data.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Gsm8kTaskTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(directory_ / "gsm8k"); }

  void put(const std::string& name, const std::string& bytes) const {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
  }
  bool passes(const std::string& completion, const std::string& gold) const {
    const TaskRecord record{"gsm8k/0", {{"question", "q"}, {"answer", "steps\n#### " + gold}}};
    return task_->grade(task_->extract(completion, record), record, nullptr).status ==
           VerdictStatus::pass;
  }
  std::string load_failure(const fs::path& data) const {
    return test::message_of<DataError>([&] { return task_->load(data); });
  }

  test::TemporaryDirectory scratch_;
  const fs::path directory_ = scratch_.path();
  std::unique_ptr<Task> task_ = make_task("gsm8k", {.prompt_style = "plain"});
};

TEST_F(Gsm8kTaskTest, ExtractionFollowsItsRule) {
  EXPECT_TRUE(passes("3 + 4 = 7\n#### 7", "7"));
  EXPECT_TRUE(passes("#### $1,200.00 dollars\nQuestion: 5", "1200"));
  // lm-eval's strict match ignores the rest, too.
  EXPECT_TRUE(passes("#### 7\nmore #### 8", "7"));
  EXPECT_TRUE(passes("3 + 15 = 18\n#### 18\n\nQuestion: How many?\n9 * 11 = 99\n#### 99", "18"));
  EXPECT_TRUE(passes("#### 1. Add\n#### $1,200.\n#### 9", "1200"));
  EXPECT_TRUE(passes("so #### 7 or #### 8", "8"));
  EXPECT_TRUE(passes("#### Step 1: add\n#### \\$7", "7"));
  EXPECT_TRUE(passes("#### Step 1: add\nIt is 7", "7"));
  EXPECT_TRUE(passes("####7 apples", "7"));
  EXPECT_FALSE(passes("#### $", "7"));
  EXPECT_TRUE(passes("so \\boxed{12.0} apples out of 99", "12"));
  EXPECT_TRUE(passes("\\boxed{x = \\$18}", "18"));
  EXPECT_TRUE(passes("\\boxed{\\frac{1}{2}}", "0.5"));
  EXPECT_TRUE(passes("The answer is 42.", "42"));
  EXPECT_TRUE(passes("####\nI think it is 42", "42"));
  EXPECT_TRUE(passes("\\boxed{none} but 6", "6"));
  EXPECT_TRUE(passes("#### -3", "-3"));
  EXPECT_FALSE(passes("#### 8\n\\boxed{7} 7", "7"));
  EXPECT_FALSE(passes("\\boxed{8} 7", "7"));
  EXPECT_FALSE(passes("7 then 8", "7"));
  EXPECT_FALSE(passes("#### 3", "-3"));
  EXPECT_FALSE(passes("#### 7.01", "7"));
  EXPECT_FALSE(passes("", "7"));
}

TEST_F(Gsm8kTaskTest, TheFormThatWasAskedForComesFirst) {
  EXPECT_FALSE(passes("#### 1. Compute\n\\boxed{42}", "42"));
  EXPECT_TRUE(passes("#### Step 1: compute\n\\boxed{42}", "42"));
  task_ = make_task("gsm8k", {.prompt_style = "cot_boxed"});
  EXPECT_TRUE(passes("#### Step 1: compute\n#### 2. Then\n\\boxed{42}", "42"));
  EXPECT_TRUE(passes("\\boxed{none} so\n#### 42\nof 50", "42"));
  EXPECT_TRUE(passes("so\n#### 18\n\nQuestion: How many?\nAnswer: \\boxed{99}", "18"));
  EXPECT_TRUE(passes("\\boxed{18}\n#### 18\n\n\\boxed{99}", "18"));
  EXPECT_TRUE(passes("50, then 42", "42"));
  EXPECT_FALSE(passes("\\boxed{8}\n#### 42", "42"));
}

TEST_F(Gsm8kTaskTest, BoxesHoldUnitsAndGroupedDigits) {
  EXPECT_TRUE(passes("\\boxed{150 \\text{ ft}^2}", "150"));
  EXPECT_TRUE(passes("\\boxed{15 m^2}", "15"));
  EXPECT_TRUE(passes("\\boxed{5\\text{ m}^{2}}", "5"));
  EXPECT_TRUE(passes("\\boxed{5 cm^{3}}", "5"));
  EXPECT_TRUE(passes("\\boxed{70 000}", "70000"));
  EXPECT_TRUE(passes("\\boxed{\\$1~250~000 \\text{ dollars}}", "1250000"));
  EXPECT_TRUE(passes("\\boxed{70\\,000}", "70000"));
  EXPECT_TRUE(passes("\\boxed{5, 100}", "100"));
  EXPECT_TRUE(passes("\\boxed{3 4}", "4"));
  EXPECT_FALSE(passes("\\boxed{1500 000}", "1500000"));
  EXPECT_FALSE(passes("\\boxed{x^23}", "23"));
}

TEST_F(Gsm8kTaskTest, AnExpressionInTheBoxIsNotItsLastNumber) {
  for (const char* style : {"plain", "cot_boxed"}) {
    task_ = make_task("gsm8k", {.prompt_style = style});
    EXPECT_FALSE(passes("He ate 2, so \\boxed{5 - 3}", "3"));
    EXPECT_FALSE(passes("\\boxed{5 - 3}", "5"));
    EXPECT_TRUE(passes("\\boxed{5 - 3} which is 2.", "2"));
    EXPECT_TRUE(passes("\\boxed{5 - 3}\n#### 2", "2"));
    EXPECT_TRUE(passes("\\boxed{5 - 3 = 2}", "2"));
    EXPECT_TRUE(passes("\\boxed{2\\frac{1}{2}}", "2.5"));
    EXPECT_TRUE(passes("\\boxed{\u22125}", "-5"));
    EXPECT_FALSE(passes("\\boxed{\u22125}", "5"));
    EXPECT_TRUE(passes("\\boxed{\uff11\uff12}", "12"));
    EXPECT_TRUE(passes("\\boxed{70\u00a0000}", "70000"));
    EXPECT_TRUE(passes("\\boxed{6 \\text{ million}}", "6000000"));
  }
}

TEST_F(Gsm8kTaskTest, VerdictsSayWhy) {
  const TaskRecord record{"gsm8k/0", {{"question", "q"}, {"answer", "#### 7"}}};
  EXPECT_EQ(task_->grade("8", record, nullptr).reason, "8 instead of 7");
  EXPECT_EQ(task_->grade("7.0", record, nullptr).answer, "7");
  EXPECT_THAT(task_->grade(std::nullopt, record, nullptr).reason, HasSubstr("no number"));
  const TaskRecord broken{"gsm8k/3", {{"question", "q"}, {"answer", "seven"}}};
  EXPECT_THROW(static_cast<void>(task_->grade("7", broken, nullptr)), DataError);
  EXPECT_EQ(to_string(VerdictStatus::timeout), "timeout");
}

TEST_F(Gsm8kTaskTest, PromptStylesAndRegistry) {
  const TaskRecord record{"gsm8k/0", {{"question", "How many?"}, {"answer", "#### 7"}}};
  const auto plain = task_->prompt(record).messages;
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_EQ(plain[0].role, "user");
  EXPECT_EQ(plain[0].content, "How many?");
  const auto boxed = make_task("gsm8k", {.prompt_style = "cot_boxed"});
  EXPECT_EQ(make_task("gsm8k")->version(), boxed->version());
  EXPECT_EQ(boxed->version(), "gsm8k/cot_boxed/extract-5");
  EXPECT_EQ(boxed->prompt(record).messages[0].content,
            "How many?\nPlease reason step by step, and put your final answer within \\boxed{}.");
  EXPECT_NE(boxed->version(), task_->version());
  EXPECT_EQ(task_->name(), "gsm8k");
  EXPECT_GT(task_->default_max_new_tokens(), 0);
  EXPECT_THAT(task_names(), testing::Contains("gsm8k"));
  EXPECT_THROW(static_cast<void>(make_task("gsm9k")), ConfigError);
  EXPECT_THROW(static_cast<void>(make_task("gsm8k", {.prompt_style = "loud"})), ConfigError);
  EXPECT_THAT(test::message_of<ConfigError>(
                  [&] { return make_task("gsm8k", {.prompt_style = "evalchemy"}); }),
              HasSubstr("'evalchemy' is now called 'cot_boxed'"));
}

TEST_F(Gsm8kTaskTest, FilesAreFoundAndBadOnesRefusedWithTheirLine) {
  EXPECT_THAT(load_failure(directory_), HasSubstr("gsm8k/test.jsonl.gz"));
  EXPECT_THAT(load_failure(directory_ / "none.jsonl"), HasSubstr("none.jsonl"));
  put("gsm8k/test.jsonl",
      "{\"question\":\"a\",\"answer\":\"#### 1\"}\n\n{\"question\":\"b\",\"answer\":\"#### 2\"}\n");
  const auto records = task_->load(directory_);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].id, "gsm8k/1");
  EXPECT_EQ(records[1].fields.at("question"), "b");
  EXPECT_EQ(task_->load(directory_ / "gsm8k/test.jsonl").size(), 2u);
  EXPECT_EQ(task_->load(directory_ / "gsm8k").size(), 2u);
  put("gsm8k/test.jsonl", "{\"question\":\"a\",\"answer\":\"#### 1\"}\n{\"question\":\"b\"}\n");
  EXPECT_THAT(load_failure(directory_),
              testing::AllOf(HasSubstr("test.jsonl:2"), HasSubstr("'answer'")));
  put("gsm8k/test.jsonl", "nonsense\n");
  EXPECT_THAT(load_failure(directory_), HasSubstr("test.jsonl:1"));
  put("gsm8k/test.jsonl", "\n");
  EXPECT_THAT(load_failure(directory_), HasSubstr("no problem"));
}

TEST_F(Gsm8kTaskTest, HarnessStylesTakeExamplesFromTheTrainingFile) {
  const std::string question = "{\"question\":\"How many?\",\"answer\":\"s\\n#### 7\"}\n";
  put("gsm8k/test.jsonl", question + question);
  const auto task = make_task("gsm8k", {.prompt_style = "lm-eval"});
  const auto failure = [&]() {
    return test::message_of<DataError>([&] { return task->load(directory_); });
  };
  EXPECT_THAT(failure(), HasSubstr("train.jsonl"));
  std::string training;
  for (int i = 0; i < 7; ++i) {
    const std::string n = std::to_string(i);
    training += R"({"question":"Q)" + n + R"(","answer":"A)" + n + R"(\n#### )" + n + "\"}\n";
    if (i == 3) {
      put("gsm8k/train.jsonl", training);
      EXPECT_THAT(failure(), HasSubstr("has 4 records"));
    }
  }
  put("gsm8k/train.jsonl", training);
  for (const fs::path& data : {directory_, directory_ / "gsm8k", directory_ / "gsm8k/test.jsonl"}) {
    const auto records = task->load(data);
    ASSERT_EQ(records.size(), 2u);
    const TaskPrompt prompt = task->prompt(records[0]);
    EXPECT_TRUE(prompt.messages.empty());
    EXPECT_EQ(prompt.prefix,
              "Question: Q6\nAnswer: A6\n#### 6\n\nQuestion: Q3\nAnswer: A3\n#### 3\n\n"
              "Question: Q0\nAnswer: A0\n#### 0\n\nQuestion: Q4\nAnswer: A4\n#### 4\n\n"
              "Question: Q5\nAnswer: A5\n#### 5\n\nQuestion: How many?\nAnswer:");
    EXPECT_TRUE(task->prompt(records[1])
                    .prefix.starts_with("Question: Q6\nAnswer: A6\n#### 6\n\n"
                                        "Question: Q4\n"));
  }
  EXPECT_THAT(task->stop_texts(), testing::ElementsAre("Question:", "</s>", "<|im_end|>"));
  EXPECT_EQ(task->version(), "gsm8k/lm-eval-5-shot-seed-1234/strict-match");
  EXPECT_EQ(task->default_max_new_tokens(), 256);
}

TEST_F(Gsm8kTaskTest, HarnessRulesMatchAsTheirExpressionsDo) {
  const TaskRecord record{"gsm8k/0", {{"question", "q"}, {"answer", "s\n#### 1,200"}}};
  const auto strict = make_task("gsm8k", {.prompt_style = "lm-eval"});
  const auto flexible = make_task("gsm8k", {.prompt_style = "lm-eval-flexible"});
  EXPECT_EQ(strict->extract("#### 5 #### 6", record), "5");
  EXPECT_EQ(strict->extract("#### x #### -6.", record), "-6.");
  EXPECT_EQ(strict->extract("####5", record), std::nullopt);
  EXPECT_EQ(strict->extract("#### $5", record), std::nullopt);
  EXPECT_EQ(strict->extract("the answer is 5", record), std::nullopt);
  EXPECT_EQ(flexible->extract("from 3 to 45.", record), "45.");
  EXPECT_EQ(flexible->extract("7 apples", record), "7");
  EXPECT_EQ(flexible->extract("cost -$7 each", record), "-$7");
  EXPECT_EQ(flexible->extract("5 - x ...", record), "...");
  EXPECT_EQ(flexible->extract("a . b", record), std::nullopt);
  EXPECT_EQ(flexible->extract("5.", record), "5.");
  EXPECT_EQ(strict->grade("1,200", record, nullptr).status, VerdictStatus::pass);
  EXPECT_EQ(strict->grade("1200.", record, nullptr).status, VerdictStatus::pass);
  EXPECT_EQ(flexible->grade("$1,200", record, nullptr).status, VerdictStatus::pass);
  EXPECT_EQ(strict->grade("1200.0", record, nullptr).status, VerdictStatus::fail);
  EXPECT_EQ(strict->grade("120", record, nullptr).reason, "120 instead of 1200");
  EXPECT_EQ(strict->grade(std::nullopt, record, nullptr).status, VerdictStatus::fail);
}

TEST_F(Gsm8kTaskTest, AllRealGoldAnswersInEveryStyle) {
  SKIP_WITHOUT_TEST_DATA("gsm8k/test.jsonl");
  for (const char* style : {"plain", "cot_boxed", "lm-eval", "lm-eval-flexible"}) {
    const auto task = make_task("gsm8k", {.prompt_style = style});
    const auto records = task->load(test::test_data());
    ASSERT_EQ(records.size(), 1319u);
    for (const TaskRecord& record : records) {
      const std::string& answer = record.fields.at("answer");
      EXPECT_EQ(task->grade(task->extract(answer, record), record, nullptr).status,
                VerdictStatus::pass)
          << style << " " << record.id;
      const std::size_t last = answer.find_last_of("0123456789");
      std::string other = answer;
      other[last] = static_cast<char>('0' + (other[last] - '0' + 1) % 10);
      EXPECT_EQ(task->grade(task->extract(other, record), record, nullptr).status,
                VerdictStatus::fail)
          << style << " " << record.id;
    }
  }
}

TEST_F(Gsm8kTaskTest, AllRealGoldAnswersPassAndPerturbedOnesFail) {
  SKIP_WITHOUT_TEST_DATA("gsm8k/test.jsonl");
  const auto records = task_->load(test::test_data());
  ASSERT_EQ(records.size(), 1319u);
  for (const TaskRecord& record : records) {
    const std::string& answer = record.fields.at("answer");
    const std::string gold = answer.substr(answer.rfind("####") + 5);
    EXPECT_EQ(
        task_->grade(task_->extract("So it is \\boxed{" + gold + "}.", record), record, nullptr)
            .status,
        VerdictStatus::pass)
        << record.id;
    EXPECT_EQ(
        task_->grade(task_->extract("So it is $" + gold + ".", record), record, nullptr).status,
        VerdictStatus::pass)
        << record.id;
    for (const std::string& wrong : {gold + "1", gold + ".5", "1" + gold}) {
      EXPECT_EQ(task_->grade(task_->extract("#### " + wrong, record), record, nullptr).status,
                VerdictStatus::fail)
          << record.id << " " << wrong;
    }
  }
}

}  // namespace
}  // namespace jforge
