#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "launch/command_line.h"
#include "launch/config/config_reference.h"
#include "launch/shell/shell_completion.h"
#include "runtime/error.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;

std::string source_file(const std::string& name) {
  const char* root = std::getenv("JFORGE_SOURCE_DIR");
  EXPECT_NE(root, nullptr);
  std::ifstream stream(std::filesystem::path(root == nullptr ? "." : root) / name);
  EXPECT_TRUE(stream) << name;
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string help_of(const CommandDescription& command) {
  std::vector<std::string> words = command.path;
  words.emplace_back("--help");
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  ExitCode code = ExitCode::internal;
  ::testing::internal::CaptureStdout();
  EXPECT_FALSE(parse_command_line(static_cast<int>(arguments.size()), arguments.data(), code));
  return ::testing::internal::GetCapturedStdout();
}

std::set<std::string> found(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> words;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) {
    words.insert((*at)[1].str());
  }
  return words;
}

std::string part(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t from = text.find(begin);
  EXPECT_NE(from, std::string::npos) << begin;
  if (from == std::string::npos) {
    return "";
  }
  const std::size_t to = text.find(end, from + begin.size());
  return text.substr(from, to == std::string::npos ? to : to - from);
}

TEST(Shell, DescriptionHoldsWhatTheParserShows) {
  const CommandDescription program = describe_command_line();
  EXPECT_GE(all_commands(program).size(), 20U);
  for (const CommandDescription* command : all_commands(program)) {
    const std::string help = help_of(*command);
    std::set<std::string> described;
    for (const OptionDescription& option : command->options) {
      described.insert(option.names.begin(), option.names.end());
    }
    // Lines such as "  -h,--help" and "  --set KEY=VALUE".
    std::set<std::string> shown = found(help, "(?:^|\\n)  (--?[a-z-]+)");
    shown.merge(found(help, "(?:^|\\n)  -[a-z],(--[a-z-]+)"));
    EXPECT_EQ(described, shown) << path_text(*command);
    for (const CommandDescription& sub : command->commands) {
      EXPECT_THAT(help, HasSubstr("\n  " + sub.name() + " "));
    }
    for (const OptionDescription& argument : command->arguments) {
      EXPECT_THAT(help, HasSubstr("\n  " + argument.names.back() + " "));
    }
    EXPECT_THAT(help, ::testing::Not(HasSubstr("--inject")));
  }
}

std::set<std::string> candidates(const CommandDescription& program,
                                 const std::vector<std::string>& words) {
  return found(completion_candidates(program, words), "(?:^|\n)([^\t\n]+)");
}

TEST(Shell, EveryCommandAndOptionIsOffered) {
  const CommandDescription program = describe_command_line();
  for (const CommandDescription* command : all_commands(program)) {
    std::set<std::string> subs;
    std::set<std::string> options;
    for (const CommandDescription& sub : command->commands) {
      subs.insert(sub.name());
    }
    for (const OptionDescription& option : command->options) {
      options.insert(option.names.begin(), option.names.end());
    }
    std::vector<std::string> words(command->path.begin() + 1, command->path.end());
    words.emplace_back();
    if (!subs.empty()) {
      EXPECT_EQ(candidates(program, words), subs) << path_text(*command);
    }
    words.back() = "-";
    EXPECT_EQ(candidates(program, words), options) << path_text(*command);
  }
}

TEST(Shell, EveryKeyIsOffered) {
  const CommandDescription program = describe_command_line();
  const std::map<std::string, ConfigFor> configs{{"run", ConfigFor::run},
                                                 {"pretrain", ConfigFor::pretrain},
                                                 {"finetune", ConfigFor::finetune}};
  for (const auto& [command, config] : configs) {
    std::set<std::string> settings;
    for (const ConfigKey& key : config_keys(config)) {
      settings.insert(key.path + "=");
    }
    EXPECT_GE(settings.size(), 40U);
    EXPECT_EQ(candidates(program, {command, "c.toml", "--set", ""}), settings) << command;
  }
}

TEST(Shell, ValuesAreDescribed) {
  const CommandDescription program = describe_command_line();
  std::map<std::string, OptionDescription> options;
  for (const CommandDescription* command : all_commands(program)) {
    for (const auto* list : {&command->options, &command->arguments}) {
      for (const OptionDescription& option : *list) {
        options[path_text(*command) + " " + option.names.back()] = option;
      }
    }
  }
  EXPECT_EQ(options["jforge run config"].kind, ValueKind::config_file);
  EXPECT_TRUE(options["jforge run config"].required);
  EXPECT_EQ(options["jforge run --set"].kind, ValueKind::setting);
  EXPECT_EQ(options["jforge decode --setting"].kind, ValueKind::decoding_setting);
  EXPECT_EQ(options["jforge probe decode --setting"].kind, ValueKind::decoding_setting);
  EXPECT_THAT(options["jforge run --resume"].help, HasSubstr("that has a run is refused"));
  EXPECT_EQ(options["jforge run --accept-change"].kind, ValueKind::key);
  EXPECT_EQ(options["jforge run --resume"].kind, ValueKind::directory);
  EXPECT_THAT(options["jforge run --resume"].words, ::testing::ElementsAre("auto", "never"));
  EXPECT_EQ(options["jforge run --resume"].default_text, "auto");
  EXPECT_EQ(options["jforge decode --model"].kind, ValueKind::directory);
  EXPECT_TRUE(options["jforge decode --model"].required);
  EXPECT_FALSE(options["jforge evaluate --model"].required);
  EXPECT_EQ(options["jforge evaluate --out"].kind, ValueKind::directory);
  EXPECT_TRUE(options["jforge evaluate --tasks"].list);
  EXPECT_THAT(options["jforge evaluate --tasks"].words, ::testing::Contains("gsm8k"));
  EXPECT_THAT(options["jforge evaluate --methods"].words, ::testing::Contains("jacobi"));
  EXPECT_EQ(options["jforge grade --completions"].kind, ValueKind::file);
  EXPECT_FALSE(options["jforge decode --trace"].takes_value());
}

constexpr const char* kManPage = "launch/shell/man_page.h2m";

TEST(ManPage, ExitCodesAreThoseOfTheCommandsPage) {
  const std::string exits = part(source_file(kManPage), "[EXIT STATUS]\n", "\n[");
  std::string rows = "| code | meaning |\n| --- | --- |\n";
  std::set<std::string> codes;
  const std::regex entry(R"(\n(\d+)  (.*)\n)");
  for (std::sregex_iterator at(exits.begin(), exits.end(), entry), end; at != end; ++at) {
    codes.insert((*at)[1].str());
    rows += "| " + (*at)[1].str() + " | " + (*at)[2].str() + " |\n";
  }
  EXPECT_THAT(source_file("docs/commands.md"), HasSubstr(rows));
  EXPECT_EQ(found(source_file("runtime/error.h"), "\n  [a-z_]+ = (\\d+),"), codes);
}

TEST(ManPage, FilesAreThoseOfTheResultsPage) {
  const std::set<std::string> named =
      found(part(source_file(kManPage), "[FILES]\n", "\n["), "\n([a-z./]+)  ");
  EXPECT_GE(named.size(), 5U);
  for (const std::string& name : named) {
    const std::string whole = name == "logs/" ? "`logs/rank_" : "`" + name + "`";
    EXPECT_THAT(source_file("results/README.md"), HasSubstr(whole));
  }
}

TEST(ManPage, NamesEveryVariableThatTheProgramReads) {
  const std::string page = source_file(kManPage);
  std::set<std::string> read;
  const char* root = std::getenv("JFORGE_SOURCE_DIR");
  ASSERT_NE(root, nullptr);
  for (const char* folder : {"runtime", "data", "model", "checkpoints", "workers", "coordinator",
                             "results/report", "launch"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::filesystem::path(root) / folder)) {
      if (entry.path().extension() == ".cpp") {
        std::ifstream stream(entry.path());
        read.merge(found({std::istreambuf_iterator<char>(stream), {}},
                         "getenv\\(\"(JFORGE_[A-Z_]+)\"\\)"));
      }
    }
  }
  EXPECT_GE(read.size(), 2U);
  for (const std::string& name : read) {
    EXPECT_THAT(page, HasSubstr("\n" + name + "  "));
  }
}

}  // namespace
}  // namespace jforge
