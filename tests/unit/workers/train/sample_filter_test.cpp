#include "workers/train/sample_filter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "runtime/error.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

/// Blocks of 4, zero-padded; `eos` is the end.
Trajectory answering(std::vector<TokenId> answer, std::int64_t eos = -1) {
  Trajectory trajectory;
  trajectory.block_size = 4;
  trajectory.eos_position = eos;
  trajectory.stop = eos < 0 ? StopReason::length : StopReason::eos;
  answer.resize((answer.size() + 3) / 4 * 4);
  for (std::size_t begin = 0; begin < answer.size(); begin += 4) {
    TrajectoryBlock& block = trajectory.blocks.emplace_back();
    block.states.assign(4, 999);  // a noisy state, which no rule uses
    block.states.insert(block.states.end(), answer.begin() + static_cast<std::ptrdiff_t>(begin),
                        answer.begin() + static_cast<std::ptrdiff_t>(begin) + 4);
  }
  return trajectory;
}

std::vector<TokenId> counting(TokenId count) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

FilterVerdict judged(const SampleFilterConfig& config, const Trajectory& trajectory) {
  return judge(config, trajectory, {});
}

TEST(SampleFilter, KeepsEverythingUnlessTold) {
  const SampleFilterConfig config;
  EXPECT_FALSE(config.active());
  EXPECT_EQ(judged(config, answering(std::vector<TokenId>(64, 7))), FilterVerdict::kept);
  EXPECT_EQ(judged(config, answering({}, -1)), FilterVerdict::kept);
}

TEST(SampleFilter, EndOfSequence) {
  SampleFilterConfig config;
  config.require_eos = true;
  EXPECT_TRUE(config.active());
  EXPECT_EQ(judged(config, answering(counting(12))), FilterVerdict::unfinished);
  EXPECT_EQ(judged(config, answering(counting(12), 11)), FilterVerdict::kept);
}

TEST(SampleFilter, RepeatedTokens) {
  SampleFilterConfig config;
  config.max_repetition = 0.3;
  EXPECT_EQ(judged(config, answering(counting(32))), FilterVerdict::kept);
  auto loop = counting(32);
  for (std::size_t i = 8; i < loop.size(); ++i) {
    loop[i] = loop[i % 8];
  }
  EXPECT_EQ(judged(config, answering(loop)), FilterVerdict::repetition) << "8 of 29 4-grams";
  EXPECT_EQ(judged(config, answering(loop, 10)), FilterVerdict::kept) << "it ends before the loop";
  config.require_eos = true;
  EXPECT_EQ(judged(config, answering(loop)), FilterVerdict::unfinished) << "the first reason";
}

TEST(SampleFilter, RightAnswers) {
  const auto tokenizer = BytePairTokenizer::load(std::filesystem::path(JFORGE_SOURCE_DIRECTORY) /
                                                 "launch/quickstart/model");
  const test::TemporaryDirectory directory;
  PromptStoreContent content;
  for (const char* answer : {"3 + 4 = 7\n#### 7", "7", "\\frac{1}{2}", ""}) {
    content.prompts.push_back({{1}, 0, 0, 1});
    content.answers.emplace_back(answer);
  }
  const auto path = directory.path() / "prompts.h5";
  write_prompt_store(path, content);
  const PromptStore prompts = PromptStore::open(path);
  const auto verdict = [&](const char* name, PromptId prompt, const std::string& text) {
    SampleFilterConfig config;
    config.task = name;
    EXPECT_TRUE(config.active());
    config.validate();
    const auto task = make_task(name);
    Trajectory trajectory = answering(tokenizer.encode(text));
    trajectory.prompt_id = prompt;
    trajectory.eos_position = std::ssize(tokenizer.encode(text));
    return judge(config, trajectory, {&tokenizer, task.get(), &prompts});
  };
  for (const char* task : {"gsm8k", "ledger"}) {
    for (const PromptId prompt : {0, 1}) {
      EXPECT_EQ(verdict(task, prompt, "She has 3 + 4 apples.\n#### 7"), FilterVerdict::kept);
      EXPECT_EQ(verdict(task, prompt, "She has 3 + 4 apples.\n#### 8"), FilterVerdict::wrong);
    }
    EXPECT_EQ(verdict(task, 2, "#### 7"), FilterVerdict::no_reference) << "it is no number";
    EXPECT_EQ(verdict(task, 3, "#### 7"), FilterVerdict::no_reference);
  }
  EXPECT_EQ(verdict("math", 2, "So it is \\boxed{0.5}."), FilterVerdict::kept);
  EXPECT_EQ(verdict("math", 2, "So it is \\boxed{0.4}."), FilterVerdict::wrong);
  EXPECT_EQ(verdict("math", 2, "So it is."), FilterVerdict::wrong);
}

TEST(SampleFilter, BadSettingsAreRefused) {
  const auto refused = [](auto&& change) {
    SampleFilterConfig config;
    change(config);
    EXPECT_THROW(config.validate(), ConfigError);
  };
  EXPECT_NO_THROW(SampleFilterConfig{}.validate());
  refused([](SampleFilterConfig& bad) { bad.max_repetition = 1.5; });
  refused([](SampleFilterConfig& bad) { bad.max_repetition = std::nan(""); });
  refused([](SampleFilterConfig& bad) { bad.task = "humaneval"; });
  refused([](SampleFilterConfig& bad) { bad.task = "gsm9k"; });
}

}  // namespace
}  // namespace jforge
