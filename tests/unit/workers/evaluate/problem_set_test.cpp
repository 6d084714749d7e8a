#include "workers/evaluate/problem_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/tasks/code/code_tasks.h"
#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/workers/evaluate/evaluation_fixture.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;

class ProblemSetTest : public ::testing::Test {
 protected:
  ProblemSetTest() {
    test::write_byte_tokenizer(directory_.path());
    test::write_benchmark(directory_.path(), {"1", "2", "3", "4"});
    config_.tasks = {"gsm8k"};
    config_.prompt_style = "plain";
    config_.data = directory_.path();
  }
  [[nodiscard]] ProblemSet load(std::int64_t vocabulary = 310) const {
    TaskEncoder encoder(directory_.path(), {.force_chatml = true});
    return load_problem_set("gsm8k", config_, encoder, vocabulary);
  }

  test::TemporaryDirectory directory_;
  EvaluateConfig config_;
};

TEST_F(ProblemSetTest, PromptsAreTemplatedAndEndWhereTheAnswerBegins) {
  const ProblemSet set = load();
  ASSERT_EQ(set.problems.size(), 4U);
  const auto tokenizer = BytePairTokenizer::load(directory_.path());
  EXPECT_EQ(tokenizer.decode(set.problems[2].prompt),
            "<|im_start|>user\nAA the hen lays 4 eggs. How many?<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(set.problems[2].prompt_text, tokenizer.decode(set.problems[2].prompt));
  EXPECT_EQ(set.problems[2].index, 2);
  EXPECT_EQ(set.max_new_tokens, set.task->default_max_new_tokens());
  const DecodeRequest request = set.request(2, {302});
  EXPECT_EQ(request.id, 2);
  EXPECT_EQ(request.prompt, set.problems[2].prompt);
  EXPECT_THROW((void)set.request(4, {}), InternalError);
  EXPECT_THROW((void)set.request(-1, {}), InternalError);
  // The same prompt, another random stream.
  const DecodeRequest second = set.request(sample_id(2, 1), {302});
  EXPECT_NE(second.id, request.id);
  EXPECT_EQ(second.prompt, request.prompt);
  EXPECT_EQ(problem_of(second.id), 2);
  EXPECT_EQ(sample_of(second.id), 1);
  EXPECT_EQ(sample_of(request.id), 0);
}

TEST_F(ProblemSetTest, PlainTextNeedsNoTemplate) {
  TaskEncoder encoder(directory_.path());
  EXPECT_THROW((void)load_problem_set("gsm8k", config_, encoder, 310), ConfigError);
  const test::TemporaryDirectory examples;  // the style shows some examples
  test::write_benchmark(examples.path(), std::vector<std::string>(10, "7"));
  std::filesystem::rename(examples / "gsm8k/test.jsonl", directory_ / "gsm8k/train.jsonl");
  const ProblemSet set = load_problem_set("gsm8k:lm-eval", config_, encoder, 310);
  EXPECT_THAT(encoder.tokenizer().decode(set.problems.front().prompt), HasSubstr("Question:"));
}

TEST_F(ProblemSetTest, LimitTakesTheFirst) {
  const ProblemSet all = load();
  config_.limit = 2;
  config_.max_new_tokens = 17;
  const ProblemSet some = load();
  ASSERT_EQ(some.problems.size(), 2U);
  EXPECT_EQ(some.problems[1].hash, all.problems[1].hash);
  EXPECT_NE(some.hash, all.hash);
  EXPECT_EQ(some.max_new_tokens, 17);
  config_.limit = 100;
  EXPECT_EQ(load().hash, all.hash);
}

TEST_F(ProblemSetTest, HashesFollowQuestionsAnswersAndTemplates) {
  const ProblemSet before = load();
  test::write_benchmark(directory_.path(), {"1", "2", "30", "4"});
  const ProblemSet after = load();
  EXPECT_EQ(before.problems[1].hash, after.problems[1].hash);
  EXPECT_NE(before.problems[2].hash, after.problems[2].hash);
  EXPECT_NE(before.hash, after.hash);
  config_.prompt_style = "cot_boxed";
  EXPECT_NE(load().problems[1].hash, after.problems[1].hash);
}

/// Otherwise decoding omits a stop text that is a special token, and a later number would count.
TEST_F(ProblemSetTest, ACompletionEndsAtAStopTextThatIsASpecialToken) {
  test::write_benchmark(directory_.path(), {"18", "2", "3", "4", "5"});
  std::filesystem::copy_file(directory_ / "gsm8k/test.jsonl", directory_ / "gsm8k/train.jsonl");
  const auto tokenizer = BytePairTokenizer::load(directory_.path());
  const std::vector<TokenId> completion =
      tokenizer.encode("They are 18<|im_end|>5<|im_end|>6<|endoftext|>");
  EXPECT_EQ(load().text_of(completion, tokenizer), "They are 1856");

  config_.prompt_style = "lm-eval-flexible";
  const ProblemSet set = load();
  EXPECT_EQ(set.stop_tokens, std::vector<TokenId>{302});
  const std::string text = set.text_of(completion, tokenizer);
  EXPECT_EQ(text, "They are 18");
  const TaskRecord& record = set.problems[0].record;
  const auto answer = set.task->extract(cut_at(text, set.task->stop_texts()), record);
  EXPECT_EQ(answer, "18");
  EXPECT_EQ(set.task->grade(answer, record, nullptr).status, VerdictStatus::pass);
  EXPECT_EQ(set.text_of(tokenizer.encode("They are 18<|endoftext|>"), tokenizer), "They are 18");
}

TEST_F(ProblemSetTest, ATokenizerLargerThanTheModelIsRefused) {
  EXPECT_NO_THROW((void)load(303));
  EXPECT_THAT(test::message_of<DataError>([&] { return load(302); }), HasSubstr("gsm8k/0"));
}

TEST_F(ProblemSetTest, MissingDataIsNamed) {
  config_.data = directory_ / "nowhere";
  EXPECT_THROW((void)load(), DataError);
}

}  // namespace
}  // namespace jforge
