#include "launch/command_line.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace jforge {
namespace {

struct Parsed {
  std::optional<CommandLine> line;
  ExitCode exit_code = ExitCode::internal;
};

Parsed parse(std::vector<std::string> words) {
  words.insert(words.begin(), "jforge");
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  Parsed parsed;
  parsed.line =
      parse_command_line(static_cast<int>(arguments.size()), arguments.data(), parsed.exit_code);
  return parsed;
}

TEST(CommandLine, JobsAreDistributedAndToolsAreNot) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"run", "c.toml"},
           {"run", "c.toml", "--set", "a.b=c", "--set", "d.e=f", "--resume", "never", "--dry-run"},
           {"pretrain", "c.toml"},
           {"import", "c.toml"},
           {"generate", "c.toml", "--round", "1"},
           {"train", "c.toml", "--round", "2", "--accept-change", "train.learning_rate"},
           {"evaluate", "--model", "m", "--tasks", "gsm8k", "--methods", "ar,jacobi", "--data",
            "d"},
           {"evaluate", "c.toml", "--name", "n", "--max-new-tokens", "9", "--batch-prompts", "2",
            "--prompt-style", "plain", "--block-size", "4", "--limit", "3", "--set", "a.b=c"},
           {"grade", "--task", "humaneval", "--completions", "c.jsonl", "--data", "d", "--out", "v",
            "--jobs", "2", "--allow-missing"},
           {"evaluate", "c.toml"},
           {"sweep", "c.toml", "--model", "m", "--out", "o", "--name", "n", "--set", "a.b=c"}}) {
    const Parsed parsed = parse(words);
    ASSERT_TRUE(parsed.line.has_value()) << words[0];
    EXPECT_TRUE(parsed.line->distributed) << words[0];
    EXPECT_TRUE(parsed.line->run) << words[0];
  }
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"tokenize", "--model", "m", "--decode"},
           {"decode", "--model", "m", "--prompt", "p", "--method", "ar", "--trace", "--device",
            "cpu"},
           {"export", "checkpoint", "out", "--dtype", "float32"},
           {"verify", "p"},
           {"inspect", "p"},
           {"probe", "logits", "--model", "m", "--tokens", "t", "--out", "o"},
           {"probe", "loss", "--model", "m", "--packed", "p", "--out", "o", "--ar-weight", "1",
            "--device", "auto"},
           {"probe", "decode", "--model", "m", "--tokens", "t", "--method", "jacobi", "--out",
            "o"}}) {
    const Parsed parsed = parse(words);
    ASSERT_TRUE(parsed.line.has_value()) << words[0];
    EXPECT_FALSE(parsed.line->distributed) << words[0];
    EXPECT_TRUE(parsed.line->run) << words[0];
  }
}

TEST(CommandLine, MistakesAreUsageErrors) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {},
           {"fly"},
           {"run"},
           {"run", "c.toml", "--no-such-flag"},
           {"generate", "c.toml"},
           {"generate", "c.toml", "--round", "one"},
           {"verify"},
           {"probe"},
           {"decode", "--model", "m", "--prompt", "p", "--block-size", "0"},
           {"decode", "--model", "m", "--prompt", "p", "--device", "gpu"}}) {
    const Parsed parsed = parse(words);
    EXPECT_FALSE(parsed.line.has_value());
    EXPECT_EQ(parsed.exit_code, ExitCode::usage);
  }
}

TEST(CommandLine, AskingForHelpIsNoMistake) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--help"}, {"--version"}, {"run", "--help"}, {"probe", "loss", "--help"}}) {
    const Parsed parsed = parse(words);
    EXPECT_FALSE(parsed.line.has_value());
    EXPECT_EQ(parsed.exit_code, ExitCode::ok);
  }
}

}  // namespace
}  // namespace jforge
