#include "data/prompts/prompt_import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "data/prompts/prompt_store.h"
#include "runtime/error.h"
#include "runtime/phase_clock.h"
#include "runtime/read_file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_data.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

/// One id per byte, so that the store can be read back as text.
PromptEncoder byte_encoder() {
  return {[](const Conversation& messages) {
            std::string all;
            for (const ChatMessage& message : messages) {
              all += messages.size() == 1 ? message.content
                                          : message.role + "=" + message.content + ";";
            }
            std::vector<TokenId> ids;
            for (const char c : all) {
              ids.push_back(static_cast<unsigned char>(c));
            }
            return ids;
          },
          "bytes"};
}

class PromptImportTest : public testing::Test {
 protected:
  void SetUp() override {
    config_.files = {(directory_ / "*.jsonl").string()};
    config_.field = "text";
    config_.threads = 2;
  }

  void put(const std::string& name, const std::string& bytes) const {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
  }
  ImportReport import() const { return import_prompts(config_, byte_encoder(), store_path()); }
  fs::path store_path() const { return directory_ / "prompts.h5"; }
  std::vector<std::string> kept() const {
    const PromptStore store = PromptStore::open(store_path());
    std::vector<std::string> texts;
    for (PromptId id = 0; id < store.size(); ++id) {
      const auto tokens = store.tokens(id);
      texts.emplace_back(tokens.begin(), tokens.end());
    }
    return texts;
  }
  static std::int64_t dropped(const ImportReport& report, const std::string& rule) {
    for (const DroppedByRule& entry : report.dropped) {
      if (entry.rule == rule) {
        return entry.count;
      }
    }
    return -1;
  }
  std::string failure() const {
    return test::message_of<DataError>([&] { return import(); });
  }

  test::TemporaryDirectory scratch_;
  const fs::path directory_ = scratch_.path();
  PromptImportConfig config_;
};

// Otherwise a long import counts as a hang (phase_clock.h).
TEST_F(PromptImportTest, EveryRecordIsASignOfProgress) {
  std::string records;
  for (int i = 0; i < 500; ++i) {
    records += R"({"text": "prompt )" + std::to_string(i) + "\"}\n";
  }
  put("a.jsonl", records);
  PhaseClock clock;
  clock.follow_this_thread();
  import();
  EXPECT_GE(clock.read().progress, 500U);
}

TEST_F(PromptImportTest, KeepsWhiteSpaceAndFileOrder) {
  put("b.jsonl", R"({"text":"second"})");
  put("a.jsonl", "{\"text\":\" def f():\\n\\n\\t  return  1\\r\\n \"}\n");
  const ImportReport report = import();
  EXPECT_THAT(kept(), ElementsAre(" def f():\n\n\t  return  1\r\n ", "second"));
  EXPECT_EQ(report.kept, 2);
  EXPECT_EQ(report.records, 2);
  EXPECT_EQ(report.tokens, 32);
}

TEST_F(PromptImportTest, PointersEnterArraysAndStringsThatHoldJson) {
  put("a.jsonl", R"({"a":{"b":["x","deep"]},"s":"{\"in\":{\"t/~\":\"inner\"}}"})");
  config_.field = "/a/b/1";
  import();
  EXPECT_THAT(kept(), ElementsAre("deep"));
  config_.field = "/s!/in/t~1~0";
  import();
  EXPECT_THAT(kept(), ElementsAre("inner"));
  for (const char* missing : {"/a/b/2", "/a/b/x", "/a!/b", "/s/in", "s!"}) {
    config_.field = missing;
    EXPECT_THAT(failure(), HasSubstr("no prompt is left")) << missing;
  }
  put("strings.json", "[\"one\", \"two\"]");
  config_.files = {(directory_ / "strings.json").string()};
  config_.field = "";
  import();
  EXPECT_THAT(kept(), ElementsAre("one", "two"));
}

TEST_F(PromptImportTest, FirstFieldThatTheRecordHasIsTaken) {
  put("a.jsonl", "{\"query\":\"q\",\"prompt\":\"p\"}\n{\"prompt\":\"p2\"}\n{\"other\":\"o\"}\n");
  config_.field = "query | /prompt";
  EXPECT_EQ(import().unreadable.size(), 1u);
  EXPECT_THAT(kept(), ElementsAre("q", "p2"));
  // Merged data sets hold null for missing columns.
  put("a.jsonl", "{\"query\":null,\"prompt\":\"p3\",\"x\":null,\"y\":7}\n{\"query\":null}\n");
  config_.answer_field = "x | y";
  const ImportReport report = import();
  EXPECT_EQ(report.unreadable.size(), 1u);
  EXPECT_EQ(report.with_answers, 1);
  EXPECT_THAT(kept(), ElementsAre("p3"));
}

TEST_F(PromptImportTest, WhatFollowsTheLastQuestionIsNotLookedAt) {
  put("a.jsonl",
      R"({"text":[{"role":"user","content":"x?"},{"role":"assistant","content":null,"tool_calls":[]},)"
      R"({"role":"tool","content":"1"},{"role":"assistant","content":"so 1"}]})"
      "\n"
      R"({"text":[{"role":"user","content":"a"},{"role":"assistant","content":null},)"
      R"({"role":"user","content":"y?"}]})"
      "\n");
  const ImportReport report = import();
  EXPECT_THAT(kept(), ElementsAre("x?"));
  ASSERT_EQ(report.unreadable.size(), 1u);
  EXPECT_THAT(report.unreadable[0].reason, HasSubstr("number 2 has no text under \"content\""));
}

TEST_F(PromptImportTest, ReferenceAnswersAreStoredWhereRecordsHaveThem) {
  put("a.jsonl",
      "{\"text\":\"one\",\"answer\":\"so #### 1\"}\n{\"text\":\"two\",\"answer\":2}\n"
      "{\"text\":\"three\"}\n{\"text\":\"four\",\"answer\":null}\n"
      "{\"text\":\"five\",\"answer\":[5]}\n");
  EXPECT_EQ(import().with_answers, std::nullopt);
  EXPECT_FALSE(PromptStore::open(store_path()).has_answers());
  config_.answer_field = "answer";
  const ImportReport report = import();
  EXPECT_EQ(report.with_answers, 2);
  EXPECT_THAT(report.to_json(), HasSubstr("\"with_answers\":2"));
  ASSERT_EQ(report.unreadable.size(), 1u);
  EXPECT_THAT(report.unreadable[0].reason, HasSubstr("answer_field 'answer' is neither"));
  const PromptStore store = PromptStore::open(store_path());
  ASSERT_EQ(store.size(), 4);
  EXPECT_EQ(store.answer(0), "so #### 1");
  EXPECT_EQ(store.answer(1), "2");
  EXPECT_EQ(store.answer(2), "");
  EXPECT_EQ(store.answer(3), "");
}

TEST_F(PromptImportTest, RulesAreCountedInTheirOrder) {
  put("a.jsonl", R"({"text":"A","score":"1.0","lang":"py"}
{"text":"B","score":0.5,"lang":"py"}
{"text":"C","score":1,"lang":"go"}
{"text":"A","score":1,"lang":"py"}
{"text":"  \n","score":1,"lang":"py"}
{"text":"far too long a prompt","score":1,"lang":"py"}
{"text":"D","lang":"py"}
{"text":"E","score":1,"lang":"py"}
{"text":"F","score":1,"lang":"py"}
)");
  config_.keep_if = {"score >= 1.0", "lang != go"};
  config_.max_prompt_tokens = 10;
  config_.limit = 2;
  const ImportReport report = import();
  EXPECT_THAT(kept(), ElementsAre("A", "E"));
  std::vector<std::pair<std::string, std::int64_t>> rules;
  std::int64_t sum = report.kept + static_cast<std::int64_t>(report.unreadable.size());
  for (const auto& rule : report.dropped) {
    rules.emplace_back(rule.rule, rule.count);
    sum += rule.count;
  }
  EXPECT_THAT(rules,
              ElementsAre(std::pair("score >= 1.0", 2), std::pair("lang != go", 1),
                          std::pair("empty text", 1), std::pair("duplicate text", 1),
                          std::pair("over max_prompt_tokens 10", 1), std::pair("over limit 2", 1)));
  EXPECT_EQ(sum, report.records);
  const auto json = nlohmann::json::parse(PromptStore::open(store_path()).report());
  EXPECT_EQ(json["kept"], 2);
  EXPECT_EQ(json["dropped"][0]["rule"], "score >= 1.0");
}

TEST_F(PromptImportTest, OrderByIsNumericStableAndDescending) {
  put("a.jsonl", R"({"text":"a","j":"{\"score\":\"9\"}"}
{"text":"b","j":"{\"score\":10}"}
{"text":"c","j":"broken"}
{"text":"d","j":"{\"score\":9.0}"}
{"text":"e","j":"{\"score\":2}"}
)");
  config_.order_by = "-/j!/score";
  import();
  EXPECT_THAT(kept(), ElementsAre("b", "a", "d", "e", "c"));
  config_.order_by = "/j!/score";
  import();
  EXPECT_THAT(kept(), ElementsAre("e", "a", "d", "b", "c"));
}

TEST_F(PromptImportTest, RandomSampleIsSeededKeepsOrderAndIsNotThePrefix) {
  std::string lines;
  for (int i = 0; i < 500; ++i) {
    lines += "{\"text\":\"" + std::to_string(i) + "\"}\n";
  }
  put("a.jsonl", lines);
  config_.sample = PromptSample::random;
  config_.limit = 100;
  config_.seed = 1;
  import();
  const auto first = kept();
  EXPECT_EQ(first.size(), 100u);
  EXPECT_TRUE(std::is_sorted(first.begin(), first.end(), [](const auto& a, const auto& b) {
    return std::stoi(a) < std::stoi(b);
  }));
  EXPECT_GT(std::stoi(first.back()), 400);
  EXPECT_EQ(std::set<std::string>(first.begin(), first.end()).size(), 100u);
  config_.threads = 1;
  import();
  EXPECT_EQ(kept(), first);
  config_.seed = 2;
  import();
  EXPECT_NE(kept(), first);
}

TEST_F(PromptImportTest, BadRecordsAreQuarantinedWithFileAndLine) {
  put("a.jsonl",
      "\xEF\xBB\xBF{\"text\":\"ok 1\"}\r\n"
      "{\"text\": broken}\r\n"
      "\r\n"
      "{\"text\":\"bad \xFF byte\"}\r\n"
      "{\"text\":7}\r\n"
      "{\"other\":1}\r\n"
      "{\"text\":\"lone \\ud800 surrogate\"}\r\n"
      "{\"text\":\"ok 2\"}\r\n");
  const ImportReport report = import();
  EXPECT_THAT(kept(), ElementsAre("ok 1", "ok 2"));
  std::vector<std::int64_t> lines;
  for (const BadRecord& bad : report.unreadable) {
    EXPECT_THAT(bad.file, HasSubstr("a.jsonl"));
    EXPECT_FALSE(bad.reason.empty());
    lines.push_back(bad.line);
  }
  EXPECT_THAT(lines, ElementsAre(2, 4, 5, 6, 7));
  const fs::path quarantine = store_path().string() + ".quarantine";
  const std::string text = read_file(quarantine);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  EXPECT_EQ(nlohmann::json::parse(text.substr(0, text.find('\n')))["line"], 2);
  put("a.jsonl", "{\"text\":\"all good\"}\n");
  import();
  EXPECT_FALSE(fs::exists(quarantine));
}

TEST_F(PromptImportTest, IntegersOfAnyLengthCostNoRecord) {
  put("a.jsonl",
      "{\"text\":\"a "
      "\\\"12345678901234567890123\",\"id\":12345678901234567890123,\"n\":[1,-2.5e3]}\n"
      "{\"text\":\"b\",\"id\":-99999999999999999999}\n"
      "{\"text\":\"c\",\"id\":1844674407370955161612345678901234567890.25}\n"
      "{\"text\":\"d\",\"id\":12345678901234567890x}\n");
  config_.keep_if = {"id > 1e22"};
  ImportReport report = import();
  EXPECT_THAT(kept(), ElementsAre("a \"12345678901234567890123", "c"));
  ASSERT_EQ(report.unreadable.size(), 1u);
  EXPECT_EQ(report.unreadable[0].line, 4);
  config_.keep_if = {"n != 0", "id = 12345678901234567890123"};
  import();
  EXPECT_THAT(kept(), ElementsAre("a \"12345678901234567890123"));
}

TEST_F(PromptImportTest, MissingNumbersAsPythonWritesThemCostNoRecord) {
  put("a.jsonl",
      "{\"text\":\"a NaN, -Infinity\",\"score\":NaN}\n"
      "{\"score\":-Infinity,\"l\":[Infinity,NaN],\"text\":\"b\"}\n"
      "{\"text\":\"c\",\"score\":2}\n"
      "{\"text\":NaN,\"score\":2}\n"
      "{\"text\":\"e\",\"score\":Nan}\n");
  config_.max_bad_fraction = 1;
  ImportReport report = import();
  EXPECT_THAT(kept(), ElementsAre("a NaN, -Infinity", "b", "c"));
  EXPECT_EQ(report.unreadable.size(), 2u);
  config_.keep_if = {"score > 1"};
  import();
  EXPECT_THAT(kept(), ElementsAre("c"));
}

TEST_F(PromptImportTest, ChatRecordsArePromptsUpToTheLastUserMessage) {
  put("a.jsonl",
      R"({"text":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},{"role":"assistant","content":"d"}]})"
      "\n"
      R"({"text":[{"from":"human","value":"e"},{"from":"gpt","value":"f"},{"from":"human","value":"g"}]})"
      "\n"
      R"({"text":[{"role":"user","content":"one turn"},{"role":"assistant","content":"x"}]})"
      "\n"
      R"({"text":"one turn"})"
      "\n"
      R"({"text":[{"role":"user","content":"e"},{"role":"assistant","content":"f"},{"role":"user","content":"g"}]})"
      "\n"
      R"({"text":[{"role":"user","content":"  "}]})"
      "\n");
  const ImportReport report = import();
  EXPECT_THAT(kept(), ElementsAre("system=s;user=a;assistant=b;user=c;",
                                  "user=e;assistant=f;user=g;", "one turn"));
  EXPECT_EQ(report.unreadable.size(), 0U);
}

TEST_F(PromptImportTest, WhatIsNoTextAndNoChatSaysWhatItIs) {
  put("a.jsonl", R"({"text":"fine"})"
                 "\n"
                 R"({"text":[]})"
                 "\n"
                 R"({"text":[{"role":"assistant","content":"d"}]})"
                 "\n"
                 R"({"text":[{"role":"user","content":[{"type":"image_url"}]}]})"
                 "\n"
                 R"({"text":[{"content":"x"}]})"
                 "\n"
                 R"({"text":[{"role":"tool","content":"x"}]})"
                 "\n"
                 R"({"text":["x"]})"
                 "\n"
                 R"({"text":{"a":1}})"
                 "\n"
                 R"({"question":"x","answer":1})"
                 "\n");
  const ImportReport report = import();
  std::vector<std::string> reasons;
  for (const BadRecord& bad : report.unreadable) {
    reasons.push_back(bad.reason);
  }
  using testing::HasSubstr;
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("no user message"), HasSubstr("no user message"),
                                   HasSubstr("number 1 has a part of type \"image_url\""),
                                   HasSubstr("number 1 has no text under \"role\""),
                                   HasSubstr("is of \"tool\""), HasSubstr("list of texts"),
                                   HasSubstr("neither a text nor a list of chat messages"),
                                   HasSubstr("no field 'text'; the record has question, answer")));
}

// Qwen2.5-VL's template joins them alike.
TEST_F(PromptImportTest, TextPartsAreJoined) {
  put("a.jsonl",
      R"({"text":[{"role":"system","content":[{"type":"text","text":"s"}]},)"
      R"({"role":"user","content":[{"type":"text","text":"a "},{"type":"text","text":"b"}]}]})"
      "\n");
  import();
  EXPECT_THAT(kept(), ElementsAre("system=s;user=a b;"));
}

// Expected: what Python's json.loads keeps.
TEST_F(PromptImportTest, OfFieldsWithTheSameNameTheLastCounts) {
  put("a.jsonl",
      R"({"text":"first","text":"last"})"
      "\n"
      R"({"text":[{"role":"user","role":"system","content":"a","content":[{"type":"text","text":"s"}]},)"
      R"({"role":"user","content":"a","content":"b"}]})"
      "\n");
  import();
  EXPECT_THAT(kept(), ElementsAre("last", "system=s;user=b;"));
}

// Expected: Python's str.format, except that null is not a text.
TEST_F(PromptImportTest, ATextMayBeMadeOfFields) {
  put("a.jsonl", R"({"a":"x{y}","b":{"c":[1.5]},"d":null})"
                 "\n"
                 R"({"a":["list"],"b":{"c":[2]},"d":"z"})"
                 "\n"
                 R"({"b":{"c":[3]},"d":"z"})"
                 "\n");
  config_.field = PromptImportConfig().field;
  config_.text = "{a}\n\n{/b/c/0}{d} {{}}{none | d}";
  const ImportReport report = import();
  EXPECT_THAT(kept(), ElementsAre("x{y}\n\n1.5 {}"));
  ASSERT_EQ(report.unreadable.size(), 2U);
  EXPECT_EQ(report.unreadable[0].reason, "field 'a' is neither a text nor a number");
  EXPECT_THAT(report.unreadable[1].reason, HasSubstr("no field 'a'; the record has b, d"));
}

TEST_F(PromptImportTest, LossesAreToldWithTheirRulesAndTheFirstReason) {
  put("a.jsonl",
      "{\"text\":\"one\",\"s\":1}\n{\"text\":\"one\",\"s\":2}\n{\"text\":\"far too "
      "long\",\"s\":3}\n"
      "{\"text\":\"two\"}\n");
  config_.max_prompt_tokens = 8;
  EXPECT_EQ(import().losses(),
            "1 dropped by 'duplicate text', 1 dropped by 'over max_prompt_tokens 8'");
  config_.keep_if = {"s > 0"};
  put("b.jsonl", "oops\n");
  EXPECT_THAT(import().losses(),
              testing::StartsWith("1 unreadable, 1 dropped by 's > 0', 1 dropped by 'duplicate "
                                  "text', 1 dropped by 'over max_prompt_tokens 8'; first "
                                  "unreadable: " +
                                  (directory_ / "b.jsonl").string() + ":1: "));
  config_ = {};
  config_.files = {(directory_ / "a.jsonl").string()};
  config_.field = "text";
  config_.keep_if = {"s = 1"};
  put("a.jsonl", R"({"text":"one","s":1})");
  EXPECT_EQ(import().losses(), "");
}

TEST_F(PromptImportTest, TextsThatSpellControlTokensAreKeptAndCounted) {
  put("a.jsonl",
      "{\"text\":\"plain\"}\n{\"text\":\"has <|im_end|>\"}\n{\"text\":\"long long long "
      "<|im_end|>\"}\n");
  PromptEncoder encoder = byte_encoder();
  EXPECT_EQ(import_prompts(config_, encoder, store_path()).with_control_tokens, 0);
  encoder.holds_control_tokens = [](std::string_view text) {
    return text.find("<|im_end|>") != std::string_view::npos;
  };
  config_.max_prompt_tokens = 20;
  const ImportReport report = import_prompts(config_, encoder, store_path());
  EXPECT_EQ(report.with_control_tokens, 1);
  EXPECT_THAT(kept(), ElementsAre("plain", "has <|im_end|>"));
  EXPECT_EQ(nlohmann::json::parse(PromptStore::open(store_path()).report())["with_control_tokens"],
            1);
}

TEST_F(PromptImportTest, TooManyBadRecordsStopTheImport) {
  std::string lines = "x\n";
  for (int i = 0; i < 9; ++i) {
    lines += "{\"text\":\"" + std::to_string(i) + "\"}\nbad\n";
  }
  put("a.jsonl", lines);
  EXPECT_EQ(import().unreadable.size(), 10u);  // too few records for the fraction to count
  config_.max_bad_fraction = 0;
  EXPECT_THAT(failure(), testing::AllOf(HasSubstr("a.jsonl:1:"), HasSubstr("1 of 1 records")));
  std::string more;
  for (int i = 0; i < 90; ++i) {
    more += "{\"text\":\"more " + std::to_string(i) + "\"}\n";
  }
  put("b.jsonl", more);
  config_.max_bad_fraction = 0.05;
  EXPECT_THAT(failure(), HasSubstr("cannot be read"));
  config_.max_bad_fraction = 0.2;
  EXPECT_EQ(import().kept, 99);
}

TEST_F(PromptImportTest, KeepingNothingIsAnErrorThatSaysWhy) {
  put("a.jsonl", "{\"text\":\"x\",\"s\":1}\n{\"text\":\"y\",\"s\":2}\n");
  config_.keep_if = {"s > 5"};
  EXPECT_THAT(failure(), HasSubstr("2 dropped by 's > 5'"));
  EXPECT_FALSE(fs::exists(store_path()));
  config_.keep_if = {};
  put("a.jsonl", "");
  EXPECT_THAT(failure(), HasSubstr("0 records read"));
  config_.files = {(directory_ / "*.none").string()};
  EXPECT_THAT(failure(), HasSubstr("matches no file"));
}

TEST_F(PromptImportTest, ConfigurationIsChecked) {
  const auto refused = [](auto change) {
    PromptImportConfig config;
    config.files = {"x"};
    change(config);
    EXPECT_THROW(config.validate(), ConfigError);
  };
  refused([](auto& c) { c.files.clear(); });
  refused([](auto& c) { c.limit = 0; });
  refused([](auto& c) { c.max_prompt_tokens = -1; });
  refused([](auto& c) { c.max_bad_fraction = 1.5; });
  refused([](auto& c) { c.keep_if = {"score"}; });
  refused([](auto& c) { c.field = "/a~2"; });
  refused([](auto& c) { c.order_by = "-/a~"; });
  refused([](auto& c) { c.chat_template = "llama"; });
  for (const char* const text : {"no field", "{a", "a}", "{a{b}}", "{}", "{a}}", "{{a}}"}) {
    refused([&](auto& c) { c.text = text; });
  }
}

TEST_F(PromptImportTest, IdentityFollowsTheSettingsThatMatter) {
  const std::string base = import_identity(config_, byte_encoder());
  auto other = config_;
  other.threads = 7;
  other.max_bad_fraction = 0.5;
  EXPECT_EQ(import_identity(other, byte_encoder()), base);
  other.limit = 5;
  EXPECT_NE(import_identity(other, byte_encoder()), base);
  other = config_;
  other.answer_field = "answer";
  EXPECT_NE(import_identity(other, byte_encoder()), base);
  other = config_;
  other.text = "{answer}";
  EXPECT_NE(import_identity(other, byte_encoder()), base);
  PromptEncoder encoder = byte_encoder();
  encoder.identity = "other";
  EXPECT_NE(import_identity(config_, encoder), base);
  other = config_;
  other.template_arguments = {{"enable_thinking", true}};
  EXPECT_NE(import_identity(other, byte_encoder()), base);
}

TEST_F(PromptImportTest, EncodingKeepsOrderAndPassesErrorsOn) {
  std::vector<Conversation> prompts(5000);
  std::vector<const Conversation*> views;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    prompts[i] = {{"user", std::to_string(i)}};
    views.push_back(&prompts[i]);
  }
  PromptEncoder encoder{[](const Conversation& messages) {
                          return std::vector<TokenId>{std::stoi(messages.front().content)};
                        },
                        ""};
  const auto ids = encode_all(encoder, views, 3);
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(ids[static_cast<std::size_t>(i)].tokens[0], i);
  }
  encoder.encode = [](const Conversation& messages) -> std::vector<TokenId> {
    if (messages.front().content == "4321") {
      throw EnvironmentError("at 4321");
    }
    return {};
  };
  EXPECT_THROW(static_cast<void>(encode_all(encoder, views, 3)), EnvironmentError);
}

TEST_F(PromptImportTest, ATextThatCannotBeEncodedIsQuarantinedAlone) {
  PromptEncoder encoder = byte_encoder();
  encoder.encode = [](const Conversation& messages) {
    if (messages.front().content == "bad") {
      throw DataError("the split expression failed");
    }
    return byte_encoder().encode(messages);
  };
  put("a.jsonl", "{\"text\":\"one\"}\n{\"text\":\"bad\"}\n{\"text\":\"two\"}\n");
  const ImportReport report = import_prompts(config_, encoder, store_path());
  EXPECT_THAT(kept(), ElementsAre("one", "two"));
  ASSERT_EQ(report.unreadable.size(), 1U);
  EXPECT_EQ(report.unreadable[0].line, 2);
  EXPECT_THAT(report.unreadable[0].file, HasSubstr("a.jsonl"));
  EXPECT_THAT(read_file(store_path().string() + ".quarantine"), HasSubstr("split expression"));
  config_.max_bad_fraction = 0;
  EXPECT_THROW((void)import_prompts(config_, encoder, store_path()), DataError);
}

TEST_F(PromptImportTest, AnAbsurdlyLongTextIsQuarantined) {
  const auto line = [](std::size_t bytes) {
    return "{\"text\":\"" + std::string(bytes, 'x') + "\"}\n";
  };
  put("a.jsonl", line(3) + line(60 << 20) + line(kMaxPromptBytes) + line(kMaxPromptBytes + 1));
  const ImportReport report = import();
  EXPECT_EQ(report.kept, 2);
  ASSERT_EQ(report.unreadable.size(), 2U);
  EXPECT_EQ(report.unreadable[0].line, 2);
  EXPECT_EQ(report.unreadable[0].reason,
            "the text at 'text' has 62914560 bytes; a prompt may have 4194304");
  EXPECT_EQ(report.unreadable[1].line, 4);
}

TEST_F(PromptImportTest, ProgressIsReportedAndMayStopTheImport) {
  std::string lines;
  for (int i = 0; i < 9000; ++i) {
    lines += "{\"text\":\"" + std::to_string(i) + std::string(300, 'x') + "\"}\n";
  }
  put("a.jsonl", lines);
  std::vector<ImportProgress> seen;
  static_cast<void>(import_prompts(config_, byte_encoder(), store_path(),
                                   [&](const ImportProgress& now) { seen.push_back(now); }));
  ASSERT_GE(seen.size(), 5u);
  EXPECT_EQ(seen.back().encoded, 9000);
  EXPECT_EQ(seen.back().records, 9000);
  fs::remove(store_path());
  EXPECT_THROW(static_cast<void>(import_prompts(config_, byte_encoder(), store_path(),
                                                [](const ImportProgress& now) {
                                                  if (now.encoded > 0) {
                                                    throw Interrupted("stop");
                                                  }
                                                })),
               Interrupted);
  EXPECT_FALSE(fs::exists(store_path()));
}

TEST_F(PromptImportTest, RealPromptFiles) {
  SKIP_WITHOUT_TEST_DATA("prompts");
  const fs::path data = test::test_data();
  config_.files = {(data / "prompts/*.jsonl.gz").string(),
                   (data / "prompts/mbxp/*.jsonl.gz").string()};
  config_.field = "query | prompt";
  const ImportReport report = import();
  EXPECT_EQ(report.records, 14315);
  EXPECT_TRUE(report.unreadable.empty());
  EXPECT_EQ(report.kept + dropped(report, "duplicate text"), 14315);
  EXPECT_NO_THROW(PromptStore::open(store_path()).verify());
}

}  // namespace
}  // namespace jforge
