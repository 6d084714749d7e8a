#include "workers/train/conversation_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/unit/data/tokenizer/tokenizer_fixture.h"

namespace jforge {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// Qwen3: thoughts before every last answer; a prompt without thinking ends with empty ones.
const char* const kThoughts =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and '</think>' not in m.content %}{{ "
    "'<think>\\n\\n</think>\\n\\n' }}"
    "{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}";
// DeepSeek-R1: the prompt opens thoughts, a conversation keeps none.
const char* const kOpened =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}"
    "<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}";

class ConversationSamplesTest : public testing::Test {
 protected:
  void SetUp() override { test::small_tokenizer().write_split_form(directory_); }

  /// Prompt and learnt text.
  std::pair<std::string, std::string> parts(const std::string& jinja, const std::string& answer) {
    directory_.write("pairs.jsonl",
                     nlohmann::json{{"question", "Q"}, {"answer", answer}}.dump() + "\n");
    const auto tokenizer = BytePairTokenizer::load(directory_.path());
    const ConversationFiles files{.files = {(directory_.path() / "pairs.jsonl").string()},
                                  .question_field = "question",
                                  .answer_field = "answer",
                                  .longest = 1000,
                                  .longest_key = "max_tokens",
                                  .eos_ids = {*tokenizer.token_id("<|im_end|>")}};
    const auto samples =
        read_conversations(files, tokenizer, ChatTemplate::parse(jinja, "the model"));
    const auto& [tokens, first] = samples.at(0);
    const auto split = tokens.begin() + first;
    return {tokenizer.decode(std::vector(tokens.begin(), split)),
            tokenizer.decode(std::vector(split, tokens.end()))};
  }

  test::ScratchDirectory directory_;
};

TEST_F(ConversationSamplesTest, AnAnswerWithThoughtsIsLearntFromItsFirstThought) {
  const std::string question = "<|im_start|>user\nQ<|im_end|><|im_start|>assistant\n";
  const std::string empty = "<think>\n\n</think>\n\n";
  EXPECT_EQ(parts(kThoughts, "A"), std::pair(question + empty, std::string("A<|im_end|>")));
  const std::string thoughtful = "<think>\nwhy\n</think>\n\nA";
  EXPECT_EQ(parts(kThoughts, thoughtful), std::pair(question, thoughtful + "<|im_end|>"));
}

TEST_F(ConversationSamplesTest, AnAnswerThatNoPromptBeginsIsRefusedByItsLine) {
  for (const char* answer : {"A", "<think>\nwhy\n</think>\n\nA"}) {
    const std::string message =
        test::message_of<ConfigError>([&] { return parts(kOpened, answer); });
    EXPECT_THAT(message, StartsWith((directory_.path() / "pairs.jsonl:1: ").string()))
        << "accepted " << answer;
    EXPECT_THAT(message, HasSubstr("the chat template of the model"));
    EXPECT_THAT(message, HasSubstr(R"(which ends in "<think>\n")"));
    EXPECT_THAT(message, HasSubstr("chat_template.jinja"));
  }
}

}  // namespace
}  // namespace jforge
