#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "data/tasks/code/code_tasks.h"
#include "data/tasks/task.h"
#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/support/python_code_runner.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

using test::PythonCodeRunner;
using ::testing::HasSubstr;

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
  EXPECT_EQ(extracted("```python\n" + body), whole);  // cut by the token limit
  EXPECT_EQ(extracted(body), whole);
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
  // The prompt is not prepended.
  EXPECT_EQ(extracted("def area(r):\n\treturn 1\n```\nexplained", "evalplus"),
            "def area(r):\n    return 1");
  EXPECT_EQ(extracted("    return 1", "evalplus"), "    return 1");
  EXPECT_EQ(extracted("\n```\nx", "evalplus"), std::nullopt);
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
  EXPECT_EQ(make_task("humaneval_plus", {.prompt_style = "evalplus"})->stop_texts(),
            evalplus_stops());
  EXPECT_EQ(make_task("humaneval")->version(), "humaneval/evalchemy/extract-3/check-3s");
  EXPECT_EQ(raw->version(), "humaneval/lm-eval/extract-3/bare-check-3s");
  EXPECT_EQ(make_task("humaneval", {.prompt_style = "evalplus"})->version(),
            "humaneval/evalplus/sanitize-0.3.1/apart-check-3s");
  EXPECT_EQ(make_task("humaneval_plus", {.prompt_style = "evalplus"})->version(),
            "humaneval_plus/evalplus/sanitize-0.3.1/evalplus-0.3.1-floor-10s");
  EXPECT_EQ(make_task("humaneval_plus")->version(),
            "humaneval_plus/evalchemy/extract-3/evalplus-0.3.1-floor-10s");
  EXPECT_THROW(static_cast<void>(make_task("humaneval", {.prompt_style = "x"})), ConfigError);
}

TEST(HumanevalTask, GradesByTheTestOfTheProblem) {
  if (!PythonCodeRunner::available()) {
    GTEST_SKIP() << "no " << test::kPython;
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
}

TEST(HumanevalTask, ADraftAmongThoughtsIsNoAnswer) {
  const std::string draft =
      "```python\ndef area(r):\n  return r\n```\nWait, that is wrong.\n</think>\n";
  const std::string answer = "```python\ndef area(r):\n  return math.pi * r * r\n```";
  EXPECT_THAT(
      make_task("humaneval")->extract(draft + answer, record()).value_or(""),
      ::testing::AllOf(HasSubstr("math.pi * r * r"), ::testing::Not(HasSubstr("return r\n"))));
  EXPECT_EQ(behind_thoughts("a</think>b</think> c"), " c");
  EXPECT_EQ(behind_thoughts("no thoughts"), "no thoughts");
}

TEST(HumanevalTask, WithoutAProgramAllTestsFail) {
  for (const char* name : {"humaneval", "humaneval_plus"}) {
    const Verdict verdict = make_task(name)->grade(std::nullopt, record(), nullptr);
    EXPECT_EQ(verdict.status, VerdictStatus::fail);
    EXPECT_EQ(verdict.base_status.has_value(), std::string_view(name) == "humaneval_plus");
    EXPECT_EQ(verdict.base_status.value_or(VerdictStatus::fail), VerdictStatus::fail);
  }
}

TEST(HumanevalTask, LimitsAreThoseOfTheProgramsNamed) {
  for (const char* task : {"humaneval", "humaneval_plus"}) {
    const auto limit = [&](const char* style) {
      return make_task(task, {.prompt_style = style})->default_max_new_tokens();
    };
    EXPECT_EQ(limit("evalchemy"), 1024);
    EXPECT_EQ(limit("lm-eval"), 1024);
    EXPECT_EQ(limit("evalplus"), 768);
  }
}

TaskRecord bare_record() {
  TaskRecord bare = record();
  bare.fields["prompt"] = "def area(r: float):\n    \"\"\" circle \"\"\"\n";
  return bare;
}

TEST(HumanevalTask, OnlyEvalchemyImportsForTheProgram) {
  if (!PythonCodeRunner::available()) {
    GTEST_SKIP() << "no " << test::kPython;
  }
  PythonCodeRunner runner;
  const std::string program = "def area(r):\n    return math.pi * r * r\n";
  const auto verdict = [&](const char* style) {
    return make_task("humaneval", {.prompt_style = style})->grade(program, bare_record(), &runner);
  };
  EXPECT_EQ(verdict("evalchemy").status, VerdictStatus::pass);
  for (const char* style : {"lm-eval", "evalplus"}) {
    EXPECT_EQ(verdict(style).status, VerdictStatus::fail) << style;
    EXPECT_THAT(verdict(style).reason, HasSubstr("NameError")) << style;
  }
}

TEST(HumanevalTask, EvalPlusSanitizesBeforeItGrades) {
  if (!PythonCodeRunner::available()) {
    GTEST_SKIP() << "no " << test::kPython;
  }
  PythonCodeRunner runner;
  const std::string program = "import math\ndef area(r):\n    return math.pi * r * r";
  const std::string answer = "Here it's:\n\n" + program + "\n\nassert area(1) == 0\n'é\\";
  for (const char* name : {"humaneval", "humaneval_plus"}) {
    const Verdict verdict =
        make_task(name, {.prompt_style = "evalplus"})->grade(answer, record(), &runner);
    EXPECT_EQ(verdict.status, VerdictStatus::pass) << name << ": " << verdict.reason;
    EXPECT_EQ(verdict.answer, program);
    EXPECT_EQ(make_task(name)->grade(answer, record(), &runner).status, VerdictStatus::fail);
  }
  const auto task = make_task("humaneval", {.prompt_style = "evalplus"});
  const Verdict cut = task->grade(program + "  # \xE2\x82\nx = '\xF0", record(), &runner);
  EXPECT_EQ(cut.status, VerdictStatus::pass) << cut.reason;
  EXPECT_EQ(cut.answer, program);
}

TEST(HumanevalTask, WithEvalPlusOnlyTheTestSeesWhatThePromptDefines) {
  if (!PythonCodeRunner::available()) {
    GTEST_SKIP() << "no " << test::kPython;
  }
  PythonCodeRunner runner;
  TaskRecord helped = record();
  helped.fields["test"] =
      "def check(candidate):\n    assert candidate(helper(1)) == area(0) == math.floor(2.5)\n";
  const auto task = make_task("humaneval", {.prompt_style = "evalplus"});
  const auto status = [&](const std::string& program) {
    return task->grade(program, helped, &runner).status;
  };
  EXPECT_EQ(status("def area(r):\n    return 2\n"), VerdictStatus::pass);
  EXPECT_EQ(status("def area(r):\n    return 3\n"), VerdictStatus::fail);
  EXPECT_EQ(status("def area(r):\n    return helper(2)\n"), VerdictStatus::fail);
  EXPECT_EQ(status("def helper(x):\n    return 2\ndef area(r):\n    return helper(7)\n"),
            VerdictStatus::pass);
}

class EndingRunner final : public CodeRunner {
 public:
  explicit EndingRunner(CodeRunStatus status) : status_(status) {}
  CodeRunResult run(const CodeRunRequest& /*request*/, const CodeValueSink& /*sink*/) override {
    return {status_, "out of time", 0, {}};
  }

 private:
  CodeRunStatus status_;
};

TEST(HumanevalTask, AnAnswerThatCannotBeSanitizedSaysSo) {
  EndingRunner late(CodeRunStatus::timed_out);
  const auto grade = [&](const char* name) {
    return make_task(name, {.prompt_style = "evalplus"})->grade("x", record(), &late);
  };
  const Verdict base = grade("humaneval");
  EXPECT_EQ(base.status, VerdictStatus::timeout);
  EXPECT_EQ(base.reason, "sanitizing: out of time");
  EXPECT_FALSE(base.base_status.has_value());
  EXPECT_EQ(grade("humaneval_plus").base_status, VerdictStatus::timeout);
}

class CountingRunner final : public CodeRunner {
 public:
  CodeRunResult run(const CodeRunRequest& request, const CodeValueSink& sink = {}) override {
    ++runs;
    repeatable_runs += request.repeatable ? 1 : 0;
    if (request.entry_point == "_evalplus_call") {
      last = request;
    }
    return runner_.run(request, sink);
  }
  int runs = 0;
  int repeatable_runs = 0;
  CodeRunRequest last;

 private:
  PythonCodeRunner runner_;
};

TEST(HumanevalPlus, ComparesReturnedValuesOnBaseAndFurtherInputs) {
  if (!PythonCodeRunner::available()) {
    GTEST_SKIP() << "no " << test::kPython;
  }
  CountingRunner runner;
  const auto task = make_task("humaneval_plus");
  const auto grade = [&](const std::string& program) {
    return task->grade(program, record(), &runner);
  };
  const Verdict right = grade("def area(r):\n    return 3.14159265358979 * r ** 2\n");
  EXPECT_EQ(right.status, VerdictStatus::pass);
  EXPECT_EQ(right.base_status, VerdictStatus::pass);
  EXPECT_EQ(runner.runs, 6);  // two lists, each for canonical solution, program and comparison
  EXPECT_EQ(runner.last.call_seconds, (std::vector<double>{10.0, 10.0, 10.0}));

  const Verdict half = grade("def area(r):\n    return 3.14159265358979 * r * abs(r)\n");
  EXPECT_EQ(half.status, VerdictStatus::fail);
  EXPECT_EQ(half.base_status, VerdictStatus::pass);
  EXPECT_EQ(half.reason, "plus inputs: value of call 2 not accepted");
  EXPECT_EQ(runner.runs, 10);

  const Verdict none = grade("def area(r):\n    pass\n");
  EXPECT_EQ(none.base_status, VerdictStatus::fail);
  EXPECT_EQ(none.status, VerdictStatus::fail);
  EXPECT_EQ(runner.runs, 12);  // no further inputs after a failure
  EXPECT_EQ(runner.repeatable_runs, 2) << "the canonical solution's alone";

  EXPECT_EQ(grade("def other(r):\n    pass\n").status, VerdictStatus::fail);
  EXPECT_EQ(grade("raise SystemExit(0)\n").status, VerdictStatus::fail);
}

TEST(HumanevalPlus, ValuesTooLargeToSendAreComparedByTheirDigest) {
  if (!PythonCodeRunner::available()) {
    GTEST_SKIP() << "no " << test::kPython;
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
    GTEST_SKIP() << "no " << test::kPython;
  }
  PythonCodeRunner runner;
  TaskRecord broken = record();
  broken.fields["canonical_solution"] = "    return 1 / r\n";
  const auto task = make_task("humaneval_plus");
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::string message = test::message_of<DataError>(
        [&] { return task->grade("def area(r):\n    return 0\n", broken, &runner); });
    EXPECT_THAT(message, HasSubstr("HumanEval/0"));
    EXPECT_THAT(message, HasSubstr("plus_input: call 0"));
  }
}

TEST(HumanevalTask, LoadsFromTheFolderOrTheFile) {
  const test::TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "humaneval");
  const std::string line =
      R"({"task_id": "HumanEval/0", "prompt": "p", "entry_point": "f", "canonical_solution": "c", "test": "t"})";
  std::ofstream(directory / "humaneval/HumanEval.jsonl") << line << "\n";
  const auto task = make_task("humaneval");
  EXPECT_EQ(task->load(directory.path()).size(), 1u);
  EXPECT_EQ(task->load(directory / "humaneval/HumanEval.jsonl")[0].fields.at("entry_point"), "f");
  EXPECT_THROW(static_cast<void>(make_task("humaneval_plus")->load(directory.path())), DataError);
  EXPECT_THAT(test::message_of<DataError>([&] {
                return make_task("humaneval_plus")->load(directory / "humaneval/HumanEval.jsonl");
              }),
              HasSubstr("HumanEval.jsonl:1: no array field 'base_input'"));
}

}  // namespace
}  // namespace jforge
