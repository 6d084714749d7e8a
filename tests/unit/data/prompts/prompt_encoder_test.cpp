#include "data/prompts/prompt_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/test_data.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class PromptEncoderTest : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_TEST_DATA("qwen_tokenizer"); }
  const fs::path directory_ = test::test_data() / "qwen_tokenizer";
};

Conversation user(std::string_view text) { return {{"user", std::string(text)}}; }

TEST_F(PromptEncoderTest, RendersTheTemplateAndKeepsTheTextExactly) {
  const auto tokenizer = BytePairTokenizer::load(directory_);
  const auto chat_template = ChatTemplate::load(directory_);
  const std::string text = "def f(x):\n\n\t return  x \r\n";
  const PromptEncoder plain = make_prompt_encoder(tokenizer, chat_template, std::nullopt);
  const std::string shown = tokenizer.decode(plain.encode(user(text)));
  EXPECT_EQ(shown,
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
            "assistant.<|im_end|>\n<|im_start|>user\n" +
                text + "<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(plain.encode(user(text)).front(), tokenizer.token_id("<|im_start|>"));
  const PromptEncoder other = make_prompt_encoder(tokenizer, chat_template, "Be brief.");
  EXPECT_THAT(tokenizer.decode(other.encode(user(text))), HasSubstr("system\nBe brief.<|im_end|>"));
  EXPECT_NE(plain.identity, other.identity);
  EXPECT_EQ(plain.identity, make_prompt_encoder(tokenizer, chat_template, std::nullopt).identity);

  // As in Hugging Face's tokenizers, control tokens in a text count.
  const auto end = tokenizer.token_id("<|im_end|>");
  const auto ends = [&](std::string_view said) {
    const auto ids = plain.encode(user(said));
    return std::count(ids.begin(), ids.end(), end);
  };
  EXPECT_EQ(ends("a <|im_end|> b"), ends("a b") + 1);
  EXPECT_TRUE(plain.holds_control_tokens("a <|im_end|> b"));
  EXPECT_FALSE(plain.holds_control_tokens("a <|im_end| > b"));

  std::vector<Conversation> prompts;
  std::vector<const Conversation*> views;
  for (int i = 0; i < 200; ++i) {
    prompts.push_back(user("Problem " + std::to_string(i) + ": " + text));
  }
  for (const Conversation& prompt : prompts) {
    views.push_back(&prompt);
  }
  EXPECT_EQ(encode_all(plain, views, 3), encode_all(plain, views, 1));
}

TEST_F(PromptEncoderTest, ConversationsKeepTheirTurnsAndTheirOwnSystemMessage) {
  const auto tokenizer = BytePairTokenizer::load(directory_);
  const auto chat_template = ChatTemplate::load(directory_);
  const PromptEncoder brief = make_prompt_encoder(tokenizer, chat_template, "Be brief.");
  EXPECT_EQ(
      tokenizer.decode(brief.encode({{"user", "One?"}, {"assistant", "Two."}, {"user", "Three?"}})),
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n"
      "<|im_start|>assistant\nTwo.<|im_end|>\n<|im_start|>user\nThree?<|im_end|>\n"
      "<|im_start|>assistant\n");
  EXPECT_EQ(tokenizer.decode(brief.encode({{"system", "Be long."}, {"user", "One?"}})),
            "<|im_start|>system\nBe long.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n"
            "<|im_start|>assistant\n");
}

}  // namespace
}  // namespace jforge
