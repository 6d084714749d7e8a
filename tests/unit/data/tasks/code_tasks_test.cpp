#include "data/tasks/code/code_tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>

#include "data/tasks/code/evalplus_inputs.h"
#include "data/tasks/code/evalplus_oracle.h"
#include "runtime/error.h"
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
  // In an item of a list, where the fence's indentation is no part of the code.
  EXPECT_THAT(texts("1. It is:\n\n   ```python\n   def f():\n       return 1\n\n   ```\n"),
              ElementsAre("python:def f():\n    return 1\n\n"));
  EXPECT_THAT(texts("- a\n\t```\n\tx\n y\n\t```\n"), ElementsAre(":x\ny\n"));
  EXPECT_THAT(texts("1. ```python\n   def f():\n       return 1\n   ```\n"),
              ElementsAre("python:def f():\n    return 1\n"));
  EXPECT_THAT(texts("a\n* ```\n  x\n  ```\n"), ElementsAre(":x\n"));
  // No more than all lines have, and nothing behind other words: it may continue a function.
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
  // Also where they define the function once more, or again: what is above it is theirs, too.
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
  // "B1" begins before "1" and ends behind it.
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
  // Stops of direct completion, and parts of the chat form's, are none.
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
  const auto failure = [&](const std::string& content) -> std::string {
    try {
      static_cast<void>(load(content));
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
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
  try {
    static_cast<void>(parse_code_style("mbpp", "plain"));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("task mbpp: unknown prompt style 'plain': known are evalchemy"));
  }
}

TEST(EvalPlusInputs, AreTurnedIntoWhatTheProblemTakes) {
  const auto calls = [](const char* task, const char* json) {
    return evalplus_calls(task, *parse_json(json));
  };
  EXPECT_THAT(calls("HumanEval/2", "[[[1], \"a\"], []]"), ElementsAre("[[1], 'a']", "[]"));
  EXPECT_THAT(calls("Mbpp/2", "[[[1], [2]]]"), ElementsAre("[tuple([1]), tuple([2])]"));
  EXPECT_THAT(calls("Mbpp/63", "[[[[1]]]]"), ElementsAre("[[tuple(x) for x in [[1]]]]"));
  EXPECT_THAT(calls("Mbpp/124", "[[\"1\", \"1j\"]]"), ElementsAre("[float('1'), complex('1j')]"));
  EXPECT_THAT(calls("Mbpp/580", "[[[1, [2, []]]]]"), ElementsAre("[(1, (2, (), ), )]"));
  EXPECT_THAT(calls("Mbpp/722", "[[{\"a\": [1]}, 2.5]]"),
              ElementsAre("[{k: tuple(v) for k, v in {'a': [1]}.items()}, 2.5]"));
  EXPECT_THAT(calls("Mbpp/793", "{}"), ElementsAre());
  EXPECT_THROW(static_cast<void>(calls("Mbpp/106", "[[[1]]]")), DataError);
  EXPECT_THROW(static_cast<void>(calls("Mbpp/4", "[3]")), DataError);
}

bool accepts(EvalPlusSuite suite, EvalPlusRules rules, const std::string& entry_point,
             const char* out, const char* expected, const char* inputs = "[]", double atol = 0) {
  EvalPlusOracle oracle(suite, rules, entry_point, atol);
  return oracle.accepts(*parse_python_value(out), *parse_python_value(expected), inputs);
}

constexpr auto kOld = EvalPlusRules::v0_2_1;
constexpr auto kNew = EvalPlusRules::v0_3_1;

TEST(EvalPlusOracle, TheToleranceComesWithFloatsAndStays) {
  EvalPlusOracle oracle(EvalPlusSuite::mbpp, kNew, "f", 0);
  const auto three = *parse_python_value(R"({"int": "3"})");
  const auto almost = *parse_python_value(R"({"float": "3.0000001"})");
  const auto exact = *parse_python_value(R"({"float": "3.0"})");
  const auto list = *parse_python_value(R"([{"float": "3.0000001"}, {"int": "1"}])");
  const auto mixed = *parse_python_value(R"([{"int": "3"}, {"int": "1"}])");
  EXPECT_FALSE(oracle.accepts(almost, three, "[]"));
  EXPECT_FALSE(oracle.accepts(list, mixed, "[]"));
  EXPECT_TRUE(oracle.accepts(almost, exact, "[]"));
  EXPECT_TRUE(oracle.accepts(list, mixed, "[]"));
  EXPECT_FALSE(oracle.accepts(almost, three, "[]"));  // types differ
}

TEST(EvalPlusOracle, TheTwoReleasesDiffer) {
  const auto both = [](const char* name, const char* out, const char* expected, double atol = 0) {
    return std::pair(accepts(EvalPlusSuite::mbpp, kOld, name, out, expected, "[]", atol),
                     accepts(EvalPlusSuite::mbpp, kNew, name, out, expected, "[]", atol));
  };
  EXPECT_EQ(both("similar_elements", R"({"set": ["a"]})", R"({"tuple": ["a"]})"),
            std::pair(false, true));
  EXPECT_EQ(both("f", R"({"float": "nan"})", R"({"float": "nan"})"), std::pair(true, false));
  EXPECT_EQ(both("f", R"({"int": "5"})", "[]"), std::pair(true, false));
  EXPECT_EQ(both("f", "null", "[]"), std::pair(false, false));
  EXPECT_EQ(both("f", R"({"tuple": [{"float": "1.0"}]})", R"([{"float": "1.0"}])"),
            std::pair(true, false));
  EXPECT_EQ(both("f", R"({"int": "2"})", "true"), std::pair(false, false));
  EXPECT_EQ(both("f", R"({"array": [true]})", R"([true])", 1e-4), std::pair(false, false));
}

TEST(EvalPlusOracle, SpecialProblems) {
  constexpr auto kMbpp = EvalPlusSuite::mbpp;
  EXPECT_TRUE(accepts(kMbpp, kOld, "are_equivalent", "false", "true"));
  EXPECT_TRUE(accepts(kMbpp, kOld, "sum_div", R"({"int": "0"})", R"({"int": "7"})"));
  EXPECT_FALSE(accepts(kMbpp, kOld, "sum_div", R"({"int": "1"})", R"({"int": "7"})"));
  EXPECT_TRUE(accepts(kMbpp, kOld, "check_str", R"("found")", R"({"other": "Match"})"));
  EXPECT_TRUE(accepts(kMbpp, kOld, "check_str", "true", R"({"other": "Match"})"));
  EXPECT_TRUE(accepts(kMbpp, kOld, "check_str", "false", "null"));
  EXPECT_FALSE(accepts(kMbpp, kOld, "check_str", "null", R"({"other": "Match"})"));
  EXPECT_FALSE(accepts(EvalPlusSuite::humaneval, kNew, "are_equivalent", "false", "true"));
  EXPECT_TRUE(accepts(kMbpp, kNew, "digit_distance_nums", R"({"int": "9"})", R"({"int": "5"})",
                      "[12, 345]"));
  EXPECT_FALSE(accepts(kMbpp, kNew, "digit_distance_nums", R"({"int": "8"})", R"({"int": "5"})",
                       "[12, 345]"));
  EXPECT_TRUE(
      accepts(kMbpp, kNew, "surface_Area", R"({"int": "35"})", R"({"int": "1"})", "[3, 4]", 1.0));
  EXPECT_FALSE(accepts(kMbpp, kNew, "surface_Area", R"("33")", R"({"int": "1"})", "[3, 4]", 1.0));
  const auto root = [](const char* out) {
    return accepts(EvalPlusSuite::humaneval, kNew, "find_zero", out, R"({"float": "1.0"})",
                   "[[-6, 11, -6, 1]]", 1e-4);
  };
  EXPECT_TRUE(root(R"({"float": "2.0000001"})"));
  EXPECT_TRUE(root(R"({"int": "3"})"));
  EXPECT_FALSE(root(R"({"float": "1.5"})"));
  EXPECT_FALSE(root(R"({"float": "2.5"})"));  // below 0: only its size counts
  EXPECT_FALSE(root(R"({"float": "nan"})"));
  EXPECT_FALSE(root(R"({"float": "1e200"})"));
  EXPECT_FALSE(root("null"));
}

}  // namespace
}  // namespace jforge
