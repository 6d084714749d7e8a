#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "data/tasks/code/code_tasks.h"
#include "runtime/error.h"
#include "tests/support/python_code_runner.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_data.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using test::PythonCodeRunner;
using ::testing::HasSubstr;

TaskRecord mbpp_record() {
  return {"mbpp/10",
          {{"task_id", "11"},
           {"text", "Write a function to double."},
           {"code", "def twice(x):\r\n  return 2 * x"},
           {"test_setup_code", "base = 3"},
           {"test_list", R"(["assert twice(1) == 2", "assert twice(base) == 6"])"}}};
}

TEST(MbppTask, ExtractsTheFirstPythonBlockElseTheText) {
  const auto task = make_task("mbpp");
  EXPECT_EQ(task->extract("x\n```python\na\n```\n```python\nb\n```", mbpp_record()), "a\n");
  EXPECT_EQ(task->extract("```bash\nq\n```\n```\na\n```\n```PYTHON\nb\n```", mbpp_record()), "b\n");
  EXPECT_EQ(task->extract("```bash\nq\n```\n```\na\n```", mbpp_record()), "a\n");
  EXPECT_EQ(task->extract("def f(): pass", mbpp_record()), "def f(): pass");
  EXPECT_EQ(task->extract("```python\n\n```", mbpp_record()), std::nullopt);
  EXPECT_EQ(task->extract(" \n", mbpp_record()), std::nullopt);
  const auto shots = make_task("mbpp", {.prompt_style = "lm-eval"});
  EXPECT_EQ(shots->extract("def f(): pass\n[DONE]\nmore", mbpp_record()), "def f(): pass\n");
}

TEST(MbppTask, PromptsFollowTheirStyle) {
  const std::string evalchemy = make_task("mbpp")->prompt(mbpp_record()).messages.at(0).content;
  EXPECT_TRUE(evalchemy.starts_with(
      "Please refer the given examples and generate a python function for my problem.\nExamples "
      "are listed as follows:\n- Example 1:\n>>> Problem:\nWrite a function to find the similar"));
  EXPECT_THAT(evalchemy, HasSubstr("(13, 14)\n\n>>> Code:\n```python\ndef similar_elements("
                                   "test_tup1, test_tup2):\n  res = "));
  EXPECT_THAT(evalchemy, HasSubstr("  return largest_nums\n```\n\nHere is my problem:\n"));
  EXPECT_TRUE(evalchemy.ends_with(
      "my problem:\n>>> Problem:\nWrite a function to double.\n>>> Test Cases:\nassert twice(1) == "
      "2\nassert twice(base) == 6\n"));
  EXPECT_EQ(evalchemy.find('\r'), std::string::npos);
  const TaskPrompt raw = make_task("mbpp", {.prompt_style = "lm-eval"})->prompt(mbpp_record());
  EXPECT_TRUE(raw.messages.empty());
  EXPECT_TRUE(raw.prefix.ends_with(
      "\n[DONE]\n\nYou are an expert Python programmer, and here is your task: Write a function to "
      "double. Your code should pass these tests:\n\nassert twice(1) == 2\nassert twice(base) == "
      "6\n[BEGIN]\n"));
  const TaskPrompt chat = make_task("mbpp", {.prompt_style = "evalplus"})->prompt(mbpp_record());
  EXPECT_THAT(
      chat.messages.at(0).content,
      HasSubstr("```\n\"\"\"\nWrite a function to double.\nassert twice(1) == 2\n\"\"\"\n```\n"));
  const TaskRecord plus{"mbpp_plus/0",
                        {{"prompt", "\"\"\"\nDouble\nit.\nassert f(1) == 2\n\"\"\"\n"}}};
  EXPECT_TRUE(
      make_task("mbpp_plus")
          ->prompt(plus)
          .messages.at(0)
          .content.ends_with(">>> Problem:\nDouble\nit.\n>>> Test Cases:\nassert f(1) == 2\n"));
  EXPECT_EQ(make_task("mbpp")->version(), "mbpp/evalchemy/extract-3/asserts-10s");
  EXPECT_EQ(make_task("mbpp", {.prompt_style = "lm-eval"})->version(),
            "mbpp/lm-eval/extract-3/asserts-3s");
  EXPECT_EQ(make_task("mbpp", {.prompt_style = "evalplus"})->version(),
            "mbpp/evalplus/sanitize-0.3.1/asserts-10s");
  EXPECT_EQ(make_task("mbpp", {.prompt_style = "evalplus"})->stop_texts(), evalplus_stops());
  EXPECT_EQ(make_task("mbpp_plus@0.1.0")->version(),
            "mbpp_plus@0.1.0/evalchemy/extract-3/evalplus-0.2.1-floor-10s");
  EXPECT_EQ(make_task("mbpp_plus")->version(),
            "mbpp_plus/evalchemy/extract-3/evalplus-0.3.1-floor-10s");
}

TEST(MbppTask, GradesByTheAssertions) {
  if (!PythonCodeRunner::available()) {
    GTEST_SKIP() << "no " << test::kPython;
  }
  PythonCodeRunner runner;
  const auto task = make_task("mbpp");
  const auto status = [&](const std::string& program) {
    return task->grade(program, mbpp_record(), &runner).status;
  };
  EXPECT_EQ(status(mbpp_record().fields.at("code")), VerdictStatus::pass);
  EXPECT_EQ(status("def twice(x):\n  return 2\n"), VerdictStatus::fail);
  EXPECT_EQ(status("def double(x):\n  return 2 * x\n"), VerdictStatus::fail);
  EXPECT_FALSE(task->grade(std::nullopt, mbpp_record(), nullptr).base_status);
  EXPECT_EQ(make_task("mbpp_plus")->grade(std::nullopt, mbpp_record(), nullptr).base_status,
            VerdictStatus::fail);
  TaskRecord sanitized = mbpp_record();
  sanitized.fields["test_imports"] = R"(["import math"])";
  sanitized.fields["test_list"] = R"(["assert twice(math.pi) > 6"])";
  EXPECT_EQ(
      make_task("mbpp_sanitized")->grade("def twice(x): return 2 * x", sanitized, &runner).status,
      VerdictStatus::pass);
}

TEST(MbppTask, LimitsAreThoseOfTheProgramsNamed) {
  const auto limit = [](const char* task, const char* style) {
    return make_task(task, {.prompt_style = style})->default_max_new_tokens();
  };
  EXPECT_EQ(limit("mbpp", "evalchemy"), 512);
  EXPECT_EQ(limit("mbpp_plus", "evalchemy"), 1024);
  for (const char* task : {"mbpp", "mbpp_sanitized", "mbpp_plus", "mbpp_plus@0.1.0"}) {
    EXPECT_EQ(limit(task, "lm-eval"), 256);
    EXPECT_EQ(limit(task, "evalplus"), 768);
  }
}

TEST(MbppTask, LmEvalRunsTheAssertionsAlone) {
  if (!PythonCodeRunner::available()) {
    GTEST_SKIP() << "no " << test::kPython;
  }
  PythonCodeRunner runner;
  const std::string program = "def twice(x):\n  return 2 * x\n";
  const auto task = make_task("mbpp", {.prompt_style = "lm-eval"});
  const Verdict verdict = task->grade(program, mbpp_record(), &runner);
  EXPECT_EQ(verdict.status, VerdictStatus::fail);
  EXPECT_THAT(verdict.reason, HasSubstr("'base' is not defined"));
  EXPECT_EQ(task->grade("base = 3\n" + program, mbpp_record(), &runner).status,
            VerdictStatus::pass);
}

TEST(MbppTask, EvalPlusSanitizesBeforeItGrades) {
  if (!PythonCodeRunner::available()) {
    GTEST_SKIP() << "no " << test::kPython;
  }
  PythonCodeRunner runner;
  const std::string program = "def twice(x):\n  return 2 * x\ndef other():\n  return 1";
  const auto task = make_task("mbpp", {.prompt_style = "evalplus"});
  const Verdict verdict =
      task->grade("It's here:\n" + program + "\nraise ValueError()\n", mbpp_record(), &runner);
  EXPECT_EQ(verdict.status, VerdictStatus::pass) << verdict.reason;
  EXPECT_EQ(verdict.answer, program);  // no entry point: all definitions stay
  EXPECT_EQ(task->extract("a\n```\nb", mbpp_record()), "a");
  EXPECT_EQ(task->extract("\n```\nb", mbpp_record()), std::nullopt);
}

TEST(MbppTask, OnlyTheTestProblemsAreLoaded) {
  const test::TemporaryDirectory directory;
  const auto line = [](int number) {
    return fmt::format(
        "{{\"task_id\": {}, \"text\": \"t\", \"code\": \"c\", \"test_setup_code\": \"\", "
        "\"test_list\": [\"assert f()\"]}}\n",
        number);
  };
  std::ofstream(directory / "mbpp.jsonl") << line(10) << line(11) << line(510) << line(511);
  const auto task = make_task("mbpp");
  const auto records = task->load(directory.path());
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].id, "mbpp/11");
  EXPECT_EQ(records[1].fields.at("task_id"), "510");
  EXPECT_EQ(load_all_mbpp(MbppSet::full, directory / "mbpp.jsonl").size(), 4u);
  std::ofstream(directory / "mbpp.jsonl") << line(10);
  EXPECT_THROW(static_cast<void>(task->load(directory.path())), DataError);
  EXPECT_THROW(static_cast<void>(make_task("mbpp_sanitized")->load(directory.path())), DataError);
}

/// A set's order depends on the hash seed.
TEST(MbppPlus, TheOldRulesDoNotTakeOrdersOfSetsThatAgreeByAccident) {
  if (!PythonCodeRunner::available()) {
    GTEST_SKIP() << "no " << test::kPython;
  }
  const TaskRecord plus{"mbpp_plus/0",
                        {{"task_id", "Mbpp/249"},
                         {"prompt", ""},
                         {"entry_point", "intersection_array"},
                         {"canonical_solution", "def intersection_array(a): return list(set(a))\n"},
                         {"base_input", R"([[["a", "b", "c", "d", "e", "f", "g", "h", "i"]]])"},
                         {"plus_input", "[[[]]]"},
                         {"atol", "0"}}};
  PythonCodeRunner runner;
  const std::string other = "def intersection_array(a):\n    return list(set(a))\n";
  const std::string& same = plus.fields.at("canonical_solution");
  const auto old_rules = make_task("mbpp_plus@0.1.0");
  const auto new_rules = make_task("mbpp_plus");
  EXPECT_EQ(old_rules->grade(same, plus, &runner).status, VerdictStatus::pass);
  EXPECT_EQ(old_rules->grade(other, plus, &runner).status, VerdictStatus::fail);
  EXPECT_EQ(new_rules->grade(same, plus, &runner).status, VerdictStatus::pass);
  EXPECT_EQ(new_rules->grade(other, plus, &runner).status, VerdictStatus::pass);
}

TEST(MbppTask, TheRealFilesLoadWhole) {
  SKIP_WITHOUT_TEST_DATA("mbpp");
  const fs::path data = test::test_data();
  const auto all = load_all_mbpp(MbppSet::full, data);
  ASSERT_EQ(all.size(), 974u);
  EXPECT_EQ(make_task("mbpp")->load(data).size(), 500u);
  EXPECT_EQ(make_task("mbpp")->load(data).front().id, "mbpp/11");
  EXPECT_EQ(load_all_mbpp(MbppSet::sanitized, data).size(), 427u);
  EXPECT_EQ(make_task("mbpp_sanitized")->load(data).size(), 257u);
  EXPECT_EQ(make_task("mbpp_sanitized")->load(data).front().id, "mbpp_sanitized/11");
  EXPECT_EQ(make_task("mbpp_plus")->load(data).size(), 378u);
  EXPECT_EQ(make_task("mbpp_plus")->load(data)[2].id, "mbpp_plus/4");
  EXPECT_EQ(make_task("mbpp_plus@0.1.0")->load(data).size(), 399u);
  EXPECT_EQ(make_task("humaneval")->load(data).size(), 164u);
  EXPECT_EQ(make_task("humaneval_plus")->load(data).size(), 164u);
  for (const char* name : {"mbpp_plus", "mbpp_plus@0.1.0"}) {
    const auto plus = make_task(name, {.prompt_style = "evalplus"});
    for (const TaskRecord& problem : plus->load(data)) {
      EXPECT_EQ(plus->prompt(problem).messages.at(0).content,
                evalplus_prompt(problem.fields.at("prompt")).messages.at(0).content);
    }
  }
  const std::string evalchemy = make_task("mbpp")->prompt(all[10]).messages.at(0).content;
  const std::string raw = make_task("mbpp", {.prompt_style = "lm-eval"})->prompt(all[10]).prefix;
  for (std::size_t i = 1; i <= 3; ++i) {
    EXPECT_THAT(raw, HasSubstr(all[i].fields.at("code") + "\n[DONE]\n\n"));
    for (const std::string& test : text_list(all[i], "test_list")) {
      EXPECT_THAT(raw, HasSubstr(test + "\n"));
      EXPECT_THAT(evalchemy, HasSubstr(test + "\n"));
    }
    EXPECT_THAT(evalchemy, HasSubstr(">>> Problem:\n" + all[i].fields.at("text") + "\n"));
    EXPECT_THAT(raw, HasSubstr("task: " + all[i].fields.at("text") + " Your code"));
  }
}

}  // namespace
}  // namespace jforge
