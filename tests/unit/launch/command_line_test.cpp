#include "launch/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/temporary_directory.h"

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
           {"finetune", "c.toml"},
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
           {"decode", "--model", "m", "--prompt", "p", "--decode-weights", "bfloat16"},
           {"probe", "logits", "--model", "m", "--tokens", "t", "--out", "o", "--decode-weights",
            "float32"},
           {"probe", "loss", "--model", "m", "--packed", "p", "--out", "o", "--set",
            "train.ar_weight=1", "--teacher", "t", "--device", "auto"},
           {"probe", "decode", "--model", "m", "--tokens", "t", "--method", "jacobi", "--out",
            "o"}}) {
    const Parsed parsed = parse(words);
    ASSERT_TRUE(parsed.line.has_value()) << words[0];
    EXPECT_FALSE(parsed.line->distributed) << words[0];
    EXPECT_TRUE(parsed.line->run) << words[0];
  }
}

TEST(CommandLine, ListsLeaveTheWordBehindTheirValueAlone) {
  const test::TemporaryDirectory directory;
  const std::string config = (directory / "my.toml").string();
  const Parsed parsed = parse({"init", "--prompts", "a.jsonl", "--prompts", "b.jsonl", config});
  ASSERT_TRUE(parsed.line.has_value());
  EXPECT_EQ(parsed.line->run(nullptr), ExitCode::ok);
  EXPECT_TRUE(std::filesystem::exists(config)) << "taken for a third file of prompts";
  // One word is the configuration, the next an error.
  for (const char* option : {"--set", "--tasks", "--methods"}) {
    EXPECT_EQ(parse({"evaluate", option, "a.b=c", "c.toml", "d.toml"}).exit_code, ExitCode::usage)
        << option;
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
           {"decode", "--model", "m", "--prompt", "p", "--decode-weights", "int4"},
           {"decode", "--model", "m", "--prompt", "p", "--device", "gpu"}}) {
    const Parsed parsed = parse(words);
    EXPECT_FALSE(parsed.line.has_value());
    EXPECT_EQ(parsed.exit_code, ExitCode::usage);
  }
}

TEST(CommandLine, ANumberThatIsNotPositiveIsNamedInOneLine) {
  for (const std::string number :
       {"0", "-3", "1.5", "many", "2147483648", "99999999999999999999"}) {
    ::testing::internal::CaptureStderr();
    const Parsed parsed =
        parse({"decode", "--model", "m", "--prompt", "p", "--block-size", number});
    EXPECT_EQ(parsed.exit_code, ExitCode::usage);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                ::testing::HasSubstr("--block-size: must be a whole number from 1 to 2147483647, "
                                     "not " +
                                     number + " (jforge decode --help lists its options)\n"));
  }
}

TEST(CommandLine, WhatIsNoNumberOfAnOptionsTypeIsNamedInOneLine) {
  for (const std::string number : {"many", "1.5", "2147483648"}) {
    ::testing::internal::CaptureStderr();
    const Parsed parsed = parse({"evaluate", "my.toml", "--batch-prompts", number});
    EXPECT_EQ(parsed.exit_code, ExitCode::usage);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(),
              "jforge: --batch-prompts = " + number +
                  ": not a number, or one beyond the option's range (jforge evaluate --help lists "
                  "its options)\n");
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

TEST(CommandLine, VersionNamesTheBuildAndItsLibraries) {
  ::testing::internal::CaptureStdout();
  parse({"--version"});
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(
      text, ::testing::MatchesRegex("jforge [0-9.]+ \\(commit (unknown|[0-9a-f]+(\\+changes)?)\\)\n"
                                    "compiler: .+\nMPI: .+\nHDF5: [0-9.]+\nCUDA: .+\n"));
}

std::string refusal(const std::vector<std::string>& words) {
  ::testing::internal::CaptureStderr();
  const Parsed parsed = parse(words);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_FALSE(parsed.line.has_value());
  EXPECT_EQ(parsed.exit_code, ExitCode::usage);
  EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
  return text;
}

TEST(CommandLine, AMistypedWordIsNamedWithWhatMayBeMeant) {
  EXPECT_EQ(refusal({}), "jforge: a command is missing; jforge --help lists them\n");
  EXPECT_EQ(refusal({"evalute", "--model", "m"}),
            "jforge: jforge has no command evalute; did you mean evaluate? (jforge --help lists "
            "them)\n");
  EXPECT_EQ(refusal({"frobnicate"}),
            "jforge: jforge has no command frobnicate (jforge --help lists them)\n");
  EXPECT_EQ(refusal({"--frob"}),
            "jforge: jforge has no option --frob; jforge --help lists commands and options\n");
  EXPECT_EQ(refusal({"probe", "logit"}),
            "jforge: jforge probe has no command logit; did you mean logits? (jforge probe --help "
            "lists them)\n");
  EXPECT_EQ(refusal({"probe"}), "jforge: a command is missing; jforge probe --help lists them\n");
  EXPECT_EQ(
      refusal({"run", "c.toml", "--resme", "auto"}),
      "jforge: run has no option --resme; did you mean --resume? (jforge run --help lists its "
      "options)\n");
  EXPECT_THAT(refusal({"probe", "decode", "--model"}),
              ::testing::EndsWith(" (jforge probe decode --help lists its options)\n"));
}

// The error before a file is read.
std::string said(const std::vector<std::string>& words) {
  const Parsed parsed = parse(words);
  if (!parsed.line) {
    return "a usage error";
  }
  try {
    static_cast<void>(parsed.line->run(nullptr));
  } catch (const ConfigError& error) {
    return error.what();
  } catch (const Error& error) {
    return "no ConfigError: " + std::string(error.what());
  }
  return "done";
}

TEST(CommandLine, ASettingThatTheMethodDoesNotHaveIsRefused) {
  const std::vector<std::string> decode = {"decode", "--model", "/nonexistent", "--prompt", "p"};
  const std::vector<std::string> probe = {"probe",    "decode", "--model", "/nonexistent",
                                          "--tokens", "t",      "--out",   "o"};
  for (const std::vector<std::string>& command : {decode, probe}) {
    const auto with = [&](std::vector<std::string> words) {
      words.insert(words.begin(), command.begin(), command.end());
      return said(words);
    };
    EXPECT_THAT(
        with({"--method", "jacobi", "--setting", "blocks=7"}),
        ::testing::HasSubstr("--setting blocks: method \"jacobi\" has no such setting; it has "
                             "block_size, "));
    for (const char* method : {"jacobi", "ar"}) {
      EXPECT_THAT(with({"--method", method, "--block-size", "4"}),
                  ::testing::HasSubstr("/nonexistent: no such directory"));
    }
    EXPECT_THAT(with({"--method", "mr", "--setting", "blocks=7", "--top-k", "3"}),
                ::testing::HasSubstr("/nonexistent: no such directory"));
  }
}

TEST(CommandLine, AProbedLossTakesTheKeysOfTrainingAlone) {
  for (const auto& [assignment, answer] :
       {std::pair{"train.ar_weight=nan", "train.ar_weight"},
        std::pair{"train.ar_weight=1e300", "train.ar_weight"},
        std::pair{"train.ar_loss=distillation", "train.teacher"},
        std::pair{"rounds.1.steps=2", "--set rounds.1.steps=2: a loss depends on train.KEY"},
        std::pair{"model.path=m", "--set model.path=m: a loss depends on train.KEY"}}) {
    EXPECT_THAT(said({"probe", "loss", "--model", "/nonexistent", "--packed", "p", "--out", "o",
                      "--set", assignment}),
                ::testing::HasSubstr(answer));
  }
}

}  // namespace
}  // namespace jforge
