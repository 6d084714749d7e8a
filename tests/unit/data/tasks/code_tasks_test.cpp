#include "data/tasks/code/code_tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>

#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void write_gzip(const std::filesystem::path& path, const std::string& content) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
  gzclose(file);
}

std::vector<std::string> texts(std::string_view markdown) {
  std::vector<std::string> found;
  for (const CodeBlock& block : code_blocks(markdown)) {
    found.push_back(block.tag + ":" + block.text);
  }
  return found;
}

TEST(CodeBlocks, FindsClosedAndCutBlocks) {
  EXPECT_THAT(texts("a\n```python\nx = 1\n```\nb\n``` \ny\n```"),
              ElementsAre("python:x = 1\n", ":y\n"));
  EXPECT_THAT(texts("Here: ```Python\nx\n  ```\n"), ElementsAre("Python:x\n"));
  EXPECT_THAT(texts("```py\ncut"), ElementsAre("py:cut"));
  EXPECT_THAT(texts("```python\n```\n```\nz\n```"), ElementsAre("python:", ":z\n"));
  EXPECT_THAT(texts("```python\ns = 'a ``` b'\nt\n```"), ElementsAre("python:s = 'a ``` b'\nt\n"));
  EXPECT_THAT(texts("1. It is:\n\n   ```python\n   def f():\n       return 1\n\n   ```\n"),
              ElementsAre("python:def f():\n    return 1\n\n"));
  EXPECT_THAT(texts("- a\n\t```\n\tx\n y\n\t```\n"), ElementsAre(":x\ny\n"));
  EXPECT_THAT(texts("1. ```python\n   def f():\n       return 1\n   ```\n"),
              ElementsAre("python:def f():\n    return 1\n"));
  EXPECT_THAT(texts("a\n* ```\n  x\n  ```\n"), ElementsAre(":x\n"));
  // Only common indentation is removed, and none after other words.
  EXPECT_THAT(texts("    ```python\ndef f(x):\n    return x\n    ```\n"),
              ElementsAre("python:def f(x):\n    return x\n"));
  EXPECT_THAT(texts("It is: ```python\n    return x\n```\n"), ElementsAre("python:    return x\n"));
  EXPECT_THAT(texts("no block"), ElementsAre());
  EXPECT_THAT(texts("```"), ElementsAre());
  EXPECT_THAT(texts("use ```f(x) here``` and\n```\nq\n```\n"), ElementsAre(":q\n"));
  EXPECT_THAT(texts(""), ElementsAre());
  EXPECT_THAT(texts("a\n```python title=a.py\nx\n```\nwords\n ```py {1,2}\ny\n```\n"),
              ElementsAre("python:x\n", "py:y\n"));
  EXPECT_THAT(texts("type ``` to open\n```\nq\n```\n"), ElementsAre(":q\n"));
}

TEST(Programs, KnowWhatTheyDefine) {
  EXPECT_TRUE(defines_function("x\ndef f (a):\n", "f"));
  EXPECT_TRUE(defines_function("async def f(a):\n", "f"));
  EXPECT_FALSE(defines_function("  def f(a):\n", "f"));
  EXPECT_FALSE(defines_function("def fg(a):\n", "f"));
  EXPECT_FALSE(defines_function("# def f(a)\n", "f"));
  EXPECT_FALSE(defines_function("", "f"));
  EXPECT_TRUE(mentions_word("x = np.array", "np"));
  EXPECT_FALSE(mentions_word("x = input(inp)", "np"));
}

TEST(Programs, CompletionsStandBehindThePrompt) {
  const std::string prompt = "from typing import List\ndef f(x):\n    pass\n";
  const TaskRecord record{"humaneval/0", {{"prompt", prompt}, {"entry_point", "f"}}};
  // The completion may use the prompt's definitions.
  for (const char* const completion : {"    return x\n", "def f(x: List):\n    return 1\n",
                                       "    return 1\n\ndef f(x):\n    return 2\n"}) {
    EXPECT_EQ(program_from_completion(record, completion), prompt + completion);
  }
  const TaskRecord nameless{"mbpp/0", {{"text", "t"}}};
  EXPECT_EQ(program_from_completion(nameless, "x"), "x");
}

TEST(Programs, ThePreambleImportsNumpyOnlyWhereItIsNamed) {
  EXPECT_THAT(with_import_preamble("x = 1\n"), HasSubstr("import math\n"));
  EXPECT_THAT(with_import_preamble("x = input\n"), ::testing::Not(HasSubstr("numpy")));
  EXPECT_THAT(with_import_preamble("x = np.sum\n"), HasSubstr("import numpy as np\n"));
  const std::string program =
      with_import_preamble("'''d'''\nfrom __future__ import annotations\ny\n");
  EXPECT_TRUE(program.starts_with("from __future__ import annotations\nimport math\n"));
  EXPECT_TRUE(program.ends_with("'''d'''\n\ny\n"));
}

TEST(Completions, EndBeforeTheEarliestStop) {
  EXPECT_EQ(cut_at("abcdef", {"e", "c", "x"}), "ab");
  EXPECT_EQ(cut_at("aB1c", {"1", "B1"}), "a");
  EXPECT_EQ(cut_at("abc", {}), "abc");
}

TEST(Completions, EvalPlusEndsThemAtItsStopsAndHasNoTabs) {
  EXPECT_EQ(evalplus_completion("def f():\n\treturn\t1"), "def f():\n    return    1");
  for (const char* stop : {"<|endoftext|>", "<|endofmask|>", "</s>", "\nif __name__", "\ndef main(",
                           "\nprint(", "\n```\n"}) {
    EXPECT_EQ(evalplus_completion(std::string("x = 1") + stop + "y"), "x = 1") << stop;
  }
  EXPECT_EQ(evalplus_completion("x = 1\n```\nprint(x)"), "x = 1");
  // Stops of direct completion, and parts of the chat form's, do not count.
  const std::string kept =
      "a\n```\\\ndef g(x):\n    print(1)\nclass A:\nimport b\nassert c\ndef mainly():\n\"\"\"";
  EXPECT_EQ(evalplus_completion(kept), kept);
}

TEST(CodeRecords, KeepNumbersOfAnyKindAndSayWhatIsWrong) {
  const test::TemporaryDirectory directory;
  const std::filesystem::path file = directory / "t.jsonl";
  const std::vector<CodeField> fields{{"task_id"}, {"list", JsonNode::Kind::array}};
  const auto load = [&](const std::string& content) {
    std::ofstream(file, std::ios::binary) << content;
    return load_code_records(file, "t", {}, fields);
  };
  const auto failure = [&](const std::string& content) {
    return test::message_of<DataError>([&] { return load(content); });
  };
  const std::string good =
      R"({"task_id": "T/1", "list": [Infinity, 123456789012345678901234567890]})";
  const auto records = load(good + "\n" + R"({"task_id": "T/2", "list": {}})" + "\n");
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].id, "t/1");
  EXPECT_EQ(records[0].fields.at("list"), "[Infinity, 123456789012345678901234567890]");
  EXPECT_EQ(records[1].fields.at("list"), "[]");
  EXPECT_THAT(failure(good + "\n{\"task_id\": \"T/2\"}\n"),
              HasSubstr("t.jsonl:2: no array field 'list'"));
  EXPECT_THAT(failure("{\"task_id\": 7, \"list\": []}"),
              HasSubstr("t.jsonl:1: no text field 'task_id'"));
  EXPECT_THAT(failure("{\"task_id\": \"\\ud800\", \"list\": []}"), HasSubstr("task_id"));
  EXPECT_THAT(failure(good + "\n[1]\n"), HasSubstr("t.jsonl:2: not a JSON object"));
  EXPECT_THAT(failure(good + "\n{\"task_id\": \"T\xFF\", \"list\": []}\n"), HasSubstr("UTF-8"));
  EXPECT_THAT(failure(good.substr(0, good.size() - 1)), HasSubstr("t.jsonl:1"));
  EXPECT_THAT(failure(""), HasSubstr("no problem"));
}

TEST(CodeRecords, EveryCutOfACompressedFileIsRefused) {
  const test::TemporaryDirectory directory;
  const std::string record = R"({"task_id": "T/1", "list": [1, 2, 3]})";
  write_gzip(directory / "whole.gz", record + "\n" + record + "\n");
  std::ifstream in(directory / "whole.gz", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  for (std::size_t size = 2; size < bytes.size(); size += 3) {
    std::ofstream(directory / "cut.gz", std::ios::binary) << bytes.substr(0, size);
    EXPECT_THROW(static_cast<void>(load_code_records(directory / "cut.gz", "t", {},
                                                     {{"list", JsonNode::Kind::array}})),
                 DataError)
        << size;
  }
}

TEST(CodeRecords, ListsOfTextsHoldNothingElse) {
  EXPECT_THAT(text_list({"t/0", {{"l", R"(["a", "b\n"])"}}}, "l"), ElementsAre("a", "b\n"));
  for (const char* json : {"[1]", "{}", "\"a\"", "[\"a\", null]", "["}) {
    EXPECT_THROW(static_cast<void>(text_list({"t/0", {{"l", json}}}, "l")), DataError) << json;
  }
}

TEST(CodeStyles, AreNamed) {
  EXPECT_EQ(parse_code_style("mbpp", ""), CodeStyle::evalchemy);
  EXPECT_EQ(parse_code_style("mbpp", "lm-eval"), CodeStyle::lm_eval);
  EXPECT_THAT(test::message_of<ConfigError>([&] { return parse_code_style("mbpp", "plain"); }),
              HasSubstr("task mbpp: unknown prompt style 'plain': known are evalchemy"));
}

TEST(PythonText, IsAnAsciiLiteral) {
  EXPECT_EQ(python_text_literal("a'b\\c\n\xC3\xA9"), R"('a\'b\\c\U0000000a\U000000e9')");
  EXPECT_EQ(python_text_literal("\xF0\x9F\x98\x80"), R"('\U0001f600')");
  for (const char* bytes : {"\xED\xA0\x80", "\xF0\x9F", "\xC3", "\x80", "\xFF"}) {
    EXPECT_THROW(static_cast<void>(python_text_literal(bytes)), DataError) << bytes;
  }
}

TEST(JsonTree, ReadsWhatPythonWrites) {
  const auto node =
      parse_json(R"( {"a": [1, -2.5e3, NaN, -Infinity], "b": "\ud83d\ude00\ud800", "a2": {}} )");
  ASSERT_TRUE(node.has_value());
  const JsonNode* list = node->find("a");
  ASSERT_NE(list, nullptr);
  EXPECT_EQ(list->raw, "[1, -2.5e3, NaN, -Infinity]");
  EXPECT_EQ(list->items[3].text, "-Infinity");
  EXPECT_EQ(node->find("b")->text, "\xF0\x9F\x98\x80\xED\xA0\x80");
  EXPECT_EQ(node->find("c"), nullptr);
  EXPECT_EQ(parse_json(R"({"k": 1, "k": 2})")->find("k")->text, "2");
}

TEST(JsonTree, RefusesWhatIsNoJson) {
  for (const char* text : {"",          "  ",          "{",       "[1,]",   "[1 2]",
                           "{\"a\" 1}", "{a: 1}",      "01",      "1.",     "-",
                           "+1",        "1e",          ".5",      "\"\n\"", "\"abc",
                           "\"\\x\"",   "\"\\u12g4\"", "\"\\u12", "tru",    "nul",
                           "[1] x",     "{\"a\":}",    "{,}",     "nan",    "\"\\ud83d\\u12\""}) {
    EXPECT_FALSE(parse_json(text).has_value()) << text;
  }
  EXPECT_FALSE(parse_json(std::string(100000, '[')).has_value());
  EXPECT_TRUE(parse_json(std::string(300, '[') + std::string(300, ']')).has_value());
}

TEST(JsonTree, EveryCutOfARecordIsRefused) {
  const std::string record = R"({"task_id": "x", "n": [1.5, "\u00e9"], "t": true})";
  for (std::size_t size = 0; size < record.size(); ++size) {
    EXPECT_FALSE(parse_json(record.substr(0, size)).has_value()) << size;
  }
}

}  // namespace
}  // namespace jforge
