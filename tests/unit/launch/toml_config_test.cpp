#include "launch/config/toml_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "runtime/error.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Round {
  std::int64_t block_size = 16;
};
struct Settings {
  std::string directory;
  double rate = 0.5;
  std::optional<std::int64_t> limit;
  std::vector<Round> rounds;
};

std::vector<ConfigField> fields_of(Settings& settings) {
  FieldList list;
  list.in("run");
  list.add("directory", settings.directory, FieldKind::operational, "");
  for (std::size_t i = 0; i < settings.rounds.size(); ++i) {
    list.in("rounds." + std::to_string(i + 1));
    list.add("block_size", settings.rounds[i].block_size, FieldKind::identity, "");
  }
  list.in("train");
  list.add("learning_rate", settings.rate, FieldKind::identity, "");
  list.add("limit", settings.limit, FieldKind::identity, "");
  return list.take();
}

Settings read(const std::string& text, const std::vector<std::string>& overrides = {}) {
  TomlDocument document(text, "job.toml");
  for (const std::string& assignment : overrides) {
    document.set(assignment);
  }
  Settings settings;
  settings.rounds.resize(document.array_size("rounds"));
  document.apply(fields_of(settings));
  return settings;
}

std::string refusal(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return test::message_of<ConfigError>([&] { return read(text, overrides); });
}

TEST(TomlConfig, FillsWhatTheFileHoldsAndKeepsOtherDefaults) {
  const Settings settings = read(
      "[run]\ndirectory = \"a\"\n[[rounds]]\nblock_size = 8\n[[rounds]]\n[train]\nlimit = 3\n");
  EXPECT_EQ(settings.directory, "a");
  EXPECT_EQ(settings.rate, 0.5);
  EXPECT_EQ(settings.limit, 3);
  ASSERT_EQ(settings.rounds.size(), 2U);
  EXPECT_EQ(settings.rounds[0].block_size, 8);
  EXPECT_EQ(settings.rounds[1].block_size, 16);
}

TEST(TomlConfig, SyntaxErrorsNameFileAndLine) {
  EXPECT_THAT(refusal("[run]\ndirectory = \n"), HasSubstr("job.toml:2:"));
}

TEST(TomlConfig, DepthIsBoundedInValuesAndInKeys) {
  const auto repeated = [](const char* part) {
    std::string text;
    for (int i = 0; i < 100'000; ++i) {
      text += part;
    }
    return text;
  };
  const std::vector<std::string> deep{
      "x = " + repeated("["),
      "x = " + repeated("{a = "),
      repeated("a.") + "b = 1",
      repeated("'a' . ") + "b = 1",
      "x = {" + repeated("a.") + "b = 1}",
      "[" + repeated("a.") + "b]",
  };
  for (const std::string& text : deep) {
    EXPECT_EQ(refusal("# [[[\n" + text + "\n"), "job.toml:2: nested more than 64 levels deep");
    EXPECT_THAT(refusal("", {"run.directory=" + text.substr(text.find('[') + 1)}),
                testing::Not(HasSubstr("\n")));
  }
  const std::string in_text = repeated("[") + repeated(".");
  for (const std::string& text : {'"' + in_text + "\\\"" + in_text + '"', '\'' + in_text + '\'',
                                  "\"\"\"\n" + in_text + "\"\n" + in_text + "\"\"\"",
                                  "'''" + in_text + "'''", "'a' # " + in_text}) {
    EXPECT_EQ(refusal("[run]\ndirectory = " + text + "\n"), "nothing thrown") << text.substr(0, 9);
  }
}

TEST(TomlConfig, UnknownKeysNameTheNearestOne) {
  EXPECT_THAT(refusal("[train]\nlearning_rat = 1.0\n"),
              AllOf(HasSubstr("job.toml:2"), HasSubstr("unknown key train.learning_rat"),
                    HasSubstr("did you mean train.learning_rate?")));
  EXPECT_THAT(refusal("[[rounds]]\n[[rounds]]\nblock = 4\n"),
              AllOf(HasSubstr("job.toml:3"), HasSubstr("rounds.2.block"),
                    HasSubstr("rounds.2.block_size")));
  EXPECT_THAT(refusal("[trane]\nlimit = 1\n"),
              HasSubstr("unknown section [trane]; did you mean train?"));
  EXPECT_THAT(refusal("[trane]\n"), HasSubstr("unknown section [trane]"));
  EXPECT_THAT(refusal("[zebra]\n"), HasSubstr("unknown section [zebra]; known are run, train"));
  EXPECT_THAT(refusal("[train]\nquagga = 1\n"),
              HasSubstr("unknown key train.quagga; known there are learning_rate, limit"));
  EXPECT_THAT(refusal("limit = 1\n"), HasSubstr("outside any section"));
  EXPECT_THAT(refusal("[train.more]\nlimit = 1\n"), HasSubstr("unknown key train.more"));
}

TEST(TomlConfig, WrongTypesNameFileLineKeyAndExpectation) {
  EXPECT_THAT(refusal("[train]\n\nlearning_rate = \"fast\"\n"),
              AllOf(HasSubstr("job.toml:3"), HasSubstr("train.learning_rate"),
                    HasSubstr("must be a number")));
  EXPECT_THAT(refusal("[train]\nlimit = 1.5\n"), HasSubstr("train.limit must be a whole number"));
}

TEST(TomlConfig, RoundsMustBeAnArrayOfTables) {
  EXPECT_THAT(refusal("[rounds]\nblock_size = 4\n"), HasSubstr("write [[rounds]]"));
  EXPECT_THAT(refusal("rounds = [1, 2]\n"), HasSubstr("write [[rounds]]"));
}

TEST(TomlConfig, OverridesAreTomlOrBareText) {
  const std::string text =
      "[run]\ndirectory = \"a\"\n[[rounds]]\nblock_size = 8\n[[rounds]]\nblock_size = 9\n";
  const Settings settings = read(text, {"run.directory=results/runs/b", "train.learning_rate=2e-3",
                                        "train.limit=7", "rounds.2.block_size=32"});
  EXPECT_EQ(settings.directory, "results/runs/b");
  EXPECT_EQ(settings.rate, 2e-3);
  EXPECT_EQ(settings.limit, 7);
  EXPECT_EQ(settings.rounds[0].block_size, 8);
  EXPECT_EQ(settings.rounds[1].block_size, 32);
  EXPECT_EQ(read(text, {"run.directory=\"quoted\""}).directory, "quoted");
  // Values may contain "=" and "."; the last override wins.
  EXPECT_EQ(read(text, {"run.directory=x", "run.directory=a.b=c"}).directory, "a.b=c");
  EXPECT_EQ(read("", {"train.limit=1"}).limit, 1);
}

TEST(TomlConfig, BadOverridesAreRefused) {
  for (const char* const assignment : {"train.limit", "limit=3", ".limit=3", "train.=3", ""}) {
    EXPECT_THAT(refusal("", {assignment}), HasSubstr("expected section.key=value")) << assignment;
  }
  EXPECT_THAT(refusal("[[rounds]]\n", {"rounds.2.block_size=4"}),
              HasSubstr("there is no [[rounds]] number 2; they are counted from 1 and the "
                        "configuration has 1"));
  EXPECT_THAT(refusal("[[rounds]]\n", {"rounds.0.block_size=4"}),
              HasSubstr("there is no [[rounds]] number 0; they are counted from 1"));
  EXPECT_THAT(refusal("", {"rounds.1.block_size=4"}), HasSubstr("the configuration has 0"));
  EXPECT_THAT(refusal("[[rounds]]\n", {"rounds.block_size=4"}), HasSubstr("not a table"));
  // A path with an extra part must not match.
  for (const char* const assignment : {"train.more.limit=3", "train.optimizer.learning_rate=1",
                                       "rounds.1.more.block_size=4", "rounds.first.block_size=4"}) {
    EXPECT_THAT(refusal("[[rounds]]\n", {assignment}),
                AllOf(HasSubstr(assignment), HasSubstr("there is no section")))
        << assignment;
  }
  EXPECT_THAT(refusal("", {"train.limits=3"}),
              AllOf(HasSubstr("--set"), HasSubstr("did you mean train.limit?")));
  EXPECT_THAT(refusal("", {"train.learning_rate=fast"}),
              AllOf(HasSubstr("--set"), HasSubstr("must be a number")));
}

TEST(TomlConfig, WrittenTextReadsBack) {
  Settings settings;
  settings.directory = "with \"quotes\"";
  settings.rate = 1e-6;
  settings.rounds = {{4}, {8}};
  const std::string text = write_toml(fields_of(settings));
  Settings back = read(text);
  EXPECT_EQ(back.directory, settings.directory);
  EXPECT_EQ(back.rate, settings.rate);
  EXPECT_EQ(back.limit, std::nullopt);
  ASSERT_EQ(back.rounds.size(), 2U);
  EXPECT_EQ(back.rounds[1].block_size, 8);
  EXPECT_EQ(write_toml(fields_of(back)), text);
}

TEST(TomlConfig, IdentityValuesAreTheIdentityFieldsAlone) {
  Settings settings;
  settings.directory = "a";
  settings.rounds = {{4}};
  EXPECT_THAT(identity_values(fields_of(settings)),
              ::testing::UnorderedElementsAre(::testing::Pair("rounds.1.block_size", "4"),
                                              ::testing::Pair("train.learning_rate", "0.5"),
                                              ::testing::Pair("train.limit", "")));
}

}  // namespace
}  // namespace jforge
