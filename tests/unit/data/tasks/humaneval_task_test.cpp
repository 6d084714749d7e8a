#include "data/tasks/code/humaneval_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "data/tasks/task.h"
#include "runtime/error.h"
#include "tests/support/python_code_runner.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;
using testing::PythonCodeRunner;

TaskRecord record() {
  return {"humaneval/0",
          {{"task_id", "HumanEval/0"},
           {"prompt",
            "import math\n\ndef helper(x):\n    return x\n\n\ndef area(r: float):\n"
            "    \"\"\" circle \"\"\"\n"},
           {"entry_point", "area"},
           {"canonical_solution", "    return math.pi * r * r\n"},
           {"test", "def check(candidate):\n    assert abs(candidate(1) - 3.14159) < 1e-3\n"},
           {"base_input", "[[1], [2.0]]"},
           {"plus_input", "[[0], [1e3], [-1]]"},
           {"atol", "0"}}};
}
const std::string kPrefix = "import math\n\ndef helper(x):\n    return x\n\n\n";

std::optional<std::string> extracted(const std::string& completion,
                                     const std::string& style = "evalchemy") {
  return make_task("humaneval", {.prompt_style = style})->extract(completion, record());
}

TEST(HumanevalTask, TheFirstPythonBlockThatDefinesTheFunctionIsTheProgram) {
  const std::string body = "def area(r):\n    return 3 * r\n";
  const std::string whole = kPrefix + body;
  EXPECT_EQ(extracted("```python\n" + body + "```"), whole);
  EXPECT_EQ(extracted("Sure! Here:\n\n```Python\n" + body + "```\nIt works."), whole);
  EXPECT_EQ(extracted("```\n" + body + "```\n"), whole);
  EXPECT_EQ(extracted("```bash\npip\n```\n```python\n" + body + "```"), whole);
  EXPECT_EQ(extracted("```python\nx = 1\n```\n```python\n" + body + "```"), whole);
  EXPECT_EQ(extracted("```\ndef area(r): 1\n```\n```python\n" + body + "```"), whole);
  EXPECT_EQ(extracted("```python\n" + body), whole);  // cut by the limit of tokens
  EXPECT_EQ(extracted(body), whole);
  // Helpers before the function stay.
  EXPECT_EQ(extracted("```python\nimport re\ndef g():\n    pass\n" + body + "```"),
            kPrefix + "import re\ndef g():\n    pass\n" + body);
}

TEST(HumanevalTask, WhatDoesNotDefineTheFunctionContinuesThePrompt) {
  const std::string prompt = record().fields.at("prompt");
  EXPECT_EQ(extracted("```python\n    return 1\n```"), prompt + "    return 1\n");
  EXPECT_EQ(extracted("    return 1\n"), prompt + "    return 1\n");
  EXPECT_EQ(extracted("  \n"), std::nullopt);
  EXPECT_EQ(extracted(""), std::nullopt);
}

TEST(HumanevalTask, OtherStylesCutAtTheirStops) {
  const std::string prompt = record().fields.at("prompt");
  EXPECT_EQ(extracted("    return 1\n\nprint(area(1))", "lm-eval"), prompt + "    return 1\n");
  EXPECT_EQ(extracted("def area(r):\n    return 1\n```\nexplained", "evalplus"),
            kPrefix + "def area(r):\n    return 1");
  EXPECT_EQ(extracted("\n```", "evalplus"), std::nullopt);
}

TEST(HumanevalTask, PromptsFollowTheirStyle) {
  const auto evalchemy = make_task("humaneval")->prompt(record());
  ASSERT_EQ(evalchemy.messages.size(), 1u);
  EXPECT_TRUE(evalchemy.messages[0].content.starts_with("Please continue to complete"));
  EXPECT_TRUE(evalchemy.messages[0].content.ends_with(
      "code to do completion:\n```python\nimport math\n\ndef helper(x):\n    return x\n\n\ndef "
      "area(r: float):\n    \"\"\" circle \"\"\"\n```"));
  EXPECT_EQ(evalchemy.prefix, "");
  const auto raw = make_task("humaneval", {.prompt_style = "lm-eval"});
  EXPECT_TRUE(raw->prompt(record()).messages.empty());
  EXPECT_EQ(raw->prompt(record()).prefix, record().fields.at("prompt"));
  EXPECT_EQ(raw->stop_texts().size(), 5u);
  const auto chat = make_task("humaneval_plus", {.prompt_style = "evalplus"})->prompt(record());
  EXPECT_TRUE(chat.prefix.ends_with("corresponding tests:\n```python\n"));
  EXPECT_EQ(make_task("humaneval")->version(), "humaneval/evalchemy/extract-2/check-3s");
  EXPECT_EQ(make_task("humaneval_plus")->version(),
            "humaneval_plus/evalchemy/extract-2/evalplus-0.3.1-floor-10s");
  EXPECT_THROW(static_cast<void>(make_task("humaneval", {.prompt_style = "x"})), ConfigError);
}

TEST(HumanevalTask, GradesByTheTestOfTheProblem) {
  if (!PythonCodeRunner::available()) {
    GTEST_SKIP() << "no " << testing::kPython;
  }
  PythonCodeRunner runner;
  const auto task = make_task("humaneval");
  const auto grade = [&](const std::string& program) {
    return task->grade(program, record(), &runner);
  };
  EXPECT_EQ(grade("def area(r):\n    return math.pi * r * r\n").status, VerdictStatus::pass);
  const Verdict wrong = grade("def area(r):\n    return r\n");
  EXPECT_EQ(wrong.status, VerdictStatus::fail);
  EXPECT_THAT(wrong.reason, HasSubstr("AssertionError"));
  EXPECT_FALSE(wrong.base_status.has_value());
  EXPECT_EQ(grade("def area(r):\n    while True: pass\n").status, VerdictStatus::timeout);
  EXPECT_EQ(grade("def area(r)\n").status, VerdictStatus::fail);
  EXPECT_EQ(grade("").status, VerdictStatus::fail);
  EXPECT_EQ(task->grade(std::nullopt, record(), &runner).status, VerdictStatus::fail);
}

/// Counts the runs that go through it.
class CountingRunner final : public CodeRunner {
 public:
  CodeRunResult run(const CodeRunRequest& request, const CodeValueSink& sink = {}) override {
    ++runs;
    last = request;
    return runner_.run(request, sink);
  }
  int runs = 0;
  CodeRunRequest last;

 private:
  PythonCodeRunner runner_;
};

TEST(HumanevalPlus, ComparesReturnedValuesOnBaseAndFurtherInputs) {
  if (!PythonCodeRunner::available()) {
    GTEST_SKIP() << "no " << testing::kPython;
  }
  CountingRunner runner;
  const auto task = make_task("humaneval_plus");
  const auto grade = [&](const std::string& program) {
    return task->grade(program, record(), &runner);
  };
  const Verdict right = grade("def area(r):\n    return 3.14159265358979 * r ** 2\n");
  EXPECT_EQ(right.status, VerdictStatus::pass);
  EXPECT_EQ(right.base_status, VerdictStatus::pass);
  EXPECT_EQ(runner.runs, 4);  // the canonical solution once on each list
  EXPECT_EQ(runner.last.call_seconds, (std::vector<double>{10.0, 10.0, 10.0}));

  const Verdict half = grade("def area(r):\n    return 3.14159265358979 * r * abs(r)\n");
  EXPECT_EQ(half.status, VerdictStatus::fail);
  EXPECT_EQ(half.base_status, VerdictStatus::pass);
  EXPECT_EQ(half.reason, "plus inputs: value of call 2 not accepted");
  EXPECT_EQ(runner.runs, 6);

  const Verdict none = grade("def area(r):\n    pass\n");
  EXPECT_EQ(none.base_status, VerdictStatus::fail);
  EXPECT_EQ(none.status, VerdictStatus::fail);
  EXPECT_EQ(runner.runs, 7);  // no further inputs after a failure

  EXPECT_EQ(grade("def other(r):\n    pass\n").status, VerdictStatus::fail);
  EXPECT_EQ(grade("raise SystemExit(0)\n").status, VerdictStatus::fail);
}

TEST(HumanevalPlus, ValuesTooLargeToSendAreComparedByTheirDigest) {
  if (!PythonCodeRunner::available()) {
    GTEST_SKIP() << "no " << testing::kPython;
  }
  PythonCodeRunner runner;
  TaskRecord large = record();
  large.fields["canonical_solution"] = "    return [(i, 'x', [r]) for i in range(100000)]\n";
  large.fields["plus_input"] = "[]";
  const auto task = make_task("humaneval_plus");
  const auto status = [&](const std::string& body) {
    return task->grade("def area(r):\n    " + body + "\n", large, &runner).status;
  };
  EXPECT_EQ(status("return list((i, 'x', [r]) for i in range(100000))"), VerdictStatus::pass);
  EXPECT_EQ(status("return [(i, 'x', [r]) for i in range(99999)] + [(99999, 'y', [r])]"),
            VerdictStatus::fail);
  EXPECT_EQ(status("return tuple((i, 'x', [r]) for i in range(100000))"), VerdictStatus::fail);
  EXPECT_EQ(status("return [(i, 'x', [r]) for i in range(10)]"), VerdictStatus::fail);
}

TEST(HumanevalPlus, ACanonicalSolutionThatDoesNotRunIsBadData) {
  if (!PythonCodeRunner::available()) {
    GTEST_SKIP() << "no " << testing::kPython;
  }
  PythonCodeRunner runner;
  TaskRecord broken = record();
  broken.fields["canonical_solution"] = "    return 1 / r\n";
  const auto task = make_task("humaneval_plus");
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      static_cast<void>(task->grade("def area(r):\n    return 0\n", broken, &runner));
      FAIL();
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("HumanEval/0"));
      EXPECT_THAT(error.what(), HasSubstr("plus_input: call 0"));
    }
  }
}

TEST(HumanevalTask, LoadsFromTheFolderOrTheFile) {
  const testing::TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "humaneval");
  const std::string line =
      R"({"task_id": "HumanEval/0", "prompt": "p", "entry_point": "f", "canonical_solution": "c", "test": "t"})";
  std::ofstream(directory / "humaneval/HumanEval.jsonl") << line << "\n";
  const auto task = make_task("humaneval");
  EXPECT_EQ(task->load(directory.path()).size(), 1u);
  EXPECT_EQ(task->load(directory / "humaneval/HumanEval.jsonl")[0].fields.at("entry_point"), "f");
  EXPECT_THROW(static_cast<void>(make_task("humaneval_plus")->load(directory.path())), DataError);
  try {
    static_cast<void>(make_task("humaneval_plus")->load(directory / "humaneval/HumanEval.jsonl"));
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("HumanEval.jsonl:1: no array field 'base_input'"));
  }
}

}  // namespace
}  // namespace jforge
