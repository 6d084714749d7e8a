#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <regex>
#include <sstream>

#include "results/report/report.h"
#include "runtime/error.h"
#include "runtime/read_file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/write_text.h"

namespace jforge {
namespace {

using test::TemporaryDirectory;
using test::write_text;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

/// 40 problems, solved except `failed`.
void write_one_method(const std::filesystem::path& directory, const std::string& model,
                      const std::vector<int>& failed, const std::string& scorer = "gsm8k/v1",
                      int begin = 0) {
  const double accuracy = 1 - static_cast<double>(failed.size()) / 40;
  const Json figures = {{"accuracy", accuracy},
                        {"tpf", 2.5},
                        {"speed",
                         {{{"batch_prompts", 1},
                           {"speed_up", 1.5},
                           {"speed_up_low", 1.375},
                           {"speed_up_high", 1.625}}}},
                        {"n", 40},
                        {"scorer", scorer}};
  const Json summary = {{"models", {{model, {{"gsm8k", {{"jacobi", figures}}}}}}},
                        {"complete", {model}}};
  write_text(directory / "summary.json", summary.dump());
  std::string lines;
  for (int i = begin; i < begin + 40; ++i) {
    const bool fails = std::find(failed.begin(), failed.end(), i) != failed.end();
    lines += Json{{"index", i},
                  {"id", "gsm8k/" + std::to_string(i)},
                  {"prompt_hash", "hash" + std::to_string(i)},
                  {"answer", fails ? Json(nullptr) : Json("12")},
                  {"verdict", fails ? "fail" : "pass"},
                  {"reason", fails ? "no | answer" : ""}}
                 .dump() +
             "\n";
  }
  write_text(directory / model / "gsm8k.jacobi.jsonl", lines);
}

std::vector<int> first(int count) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

class RunComparison : public ::testing::Test {
 protected:
  const TemporaryDirectory a;
  const TemporaryDirectory b;
  const TemporaryDirectory c;
};

TEST_F(RunComparison, ARunAgainstItselfDiffersInNothing) {
  write_one_method(a / "evaluation", "final", {1, 2});
  const ComparedRun side{a.path(), {{"train.steps", "4"}}};
  EXPECT_THAT(compare_runs(side, side),
              AllOf(HasSubstr("Both have the same configuration"), HasSubstr("+0.0 (-9.2 to +9.2)"),
                    HasSubstr("within chance"), HasSubstr("95.0 % → 95.0 %"),
                    HasSubstr("| 1.50× (1.38–1.62) "),
                    HasSubstr("## Verdicts that differ\n\nNone."), Not(HasSubstr("only in"))));
}

TEST_F(RunComparison, ConfigurationKeysThatDifferAreListed) {
  write_text(a / "run.json", "{}");
  write_text(b / "run.json", "{}");
  const std::string text = compare_runs({a.path(), {{"same", "1"}, {"rate", "2"}, {"old", "3"}}},
                                        {b.path(), {{"same", "1"}, {"rate", "5"}, {"new", "4"}}});
  EXPECT_THAT(text, AllOf(HasSubstr("| rate | 2       | 5       |"),
                          HasSubstr("| old  | 3       | not set |"),
                          HasSubstr("| new  | not set | 4       |"), Not(HasSubstr("| same")),
                          HasSubstr("No model, task and method was evaluated in both")));
  EXPECT_THAT(compare_runs({a.path(), {}}, {b.path(), {{"k", "1"}}}),
              HasSubstr(a.path().string() + " records no configuration"));
}

TEST_F(RunComparison, LongValuesAreAListAndNoTableIsWide) {
  write_one_method(a.path(), "Qwen2.5-Coder-7B-Instruct", {1});
  write_one_method(b.path(), "Qwen2.5-Coder-7B-Distilled", first(24));
  const auto samples = b / "Qwen2.5-Coder-7B-Distilled/gsm8k.jacobi.jsonl";
  write_text(samples, std::regex_replace(read_file(samples), std::regex("no \\| answer"),
                                         "an answer of very many words, ending nowhere near"));
  const std::string path = "/a/rather/long/path/of/a/model/that/would/make/a/table/very/wide";
  const std::string text = compare_runs({a.path(), {{"model.source", path}}},
                                        {b.path(), {{"model.source", path + "2"}}});
  EXPECT_THAT(text, HasSubstr("- model.source\n  - A: " + path + "\n  - B: " + path + "2\n"));
  EXPECT_THAT(text, HasSubstr("fail: an answer of …"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto further = std::ranges::count_if(
        line, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; });
    EXPECT_TRUE(!line.starts_with("|") || std::ssize(line) - further <= 100) << line;
  }
}

TEST_F(RunComparison, SmallDifferencesAreChanceAndLargeOnesAreNot) {
  write_one_method(a.path(), "final", first(4));
  write_one_method(b.path(), "final", {0, 1, 2, 10, 11});
  write_one_method(c.path(), "final", first(24));
  EXPECT_THAT(compare_runs({a.path()}, {b.path()}),
              AllOf(HasSubstr("within chance"), HasSubstr("2 solved by A alone, 1 by B alone"),
                    Not(HasSubstr("beyond"))));
  EXPECT_THAT(compare_runs({a.path()}, {c.path()}),
              AllOf(HasSubstr("beyond chance"), HasSubstr("-50.0 (-")));
}

TEST_F(RunComparison, FlippedVerdictsAreListedUpToTwenty) {
  write_one_method(a.path(), "final", {39});
  write_one_method(b.path(), "final", first(24));
  const std::string text = compare_runs({a.path()}, {b.path()});
  EXPECT_THAT(text, AllOf(HasSubstr("24 solved by A alone, 1 by B alone"),
                          HasSubstr("fail: no / answer"), HasSubstr("\n5 more.\n")));
  std::size_t listed = 0;
  for (std::size_t at = text.find("| gsm8k/"); at != std::string::npos;
       at = text.find("| gsm8k/", at + 1)) {
    ++listed;
  }
  EXPECT_EQ(listed, 20U);
  EXPECT_LT(text.find("| gsm8k/2 "), text.find("| gsm8k/10 ")) << "in the benchmark's order";
}

TEST_F(RunComparison, OnlyProblemsThatBothHaveArePaired) {
  write_one_method(a.path(), "final", {1});
  write_one_method(b.path(), "final", {11}, "gsm8k/v1", 10);
  write_one_method(c.path(), "final", {101}, "gsm8k/v1", 100);
  EXPECT_THAT(compare_runs({a.path()}, {b.path()}),
              AllOf(HasSubstr("20 samples are in one of the two only"),
                    HasSubstr("100.0 % → 96.7 %"),  // of the 30 that both have
                    HasSubstr("1 solved by A alone, 0 by B alone")));
  EXPECT_THAT(compare_runs({a.path()}, {c.path()}),
              AllOf(HasSubstr("no common problem"),
                    HasSubstr("no problem was put in the same words to both"),
                    Not(HasSubstr("in one of the two only"))));
}

TEST_F(RunComparison, AProblemThatStandsTwiceCountsTwice) {
  write_one_method(a.path(), "final", {20, 21, 22, 23});
  write_one_method(b.path(), "final", first(24));
  // The last 20 are identical; both fail the same 4.
  for (const auto& directory : {a.path(), b.path()}) {
    const auto samples = directory / "final/gsm8k.jacobi.jsonl";
    write_text(samples,
               std::regex_replace(read_file(samples), std::regex("hash([23][0-9])"), "hash20"));
  }
  EXPECT_THAT(compare_runs({a.path()}, {b.path()}),
              AllOf(HasSubstr("90.0 % → 40.0 %"), HasSubstr("-50.0 (-"),
                    HasSubstr("20 solved by A alone, 0 by B alone"),
                    Not(HasSubstr("in one of the two only"))));
}

TEST_F(RunComparison, AnAnswerCannotCommandTheTerminal) {
  write_one_method(a.path(), "final", {1});
  write_one_method(b.path(), "final", {2});
  const auto samples = a / "final/gsm8k.jacobi.jsonl";
  write_text(samples, std::regex_replace(read_file(samples), std::regex("\"12\""),
                                         "\"\\u001b[31m\\r1\\u009b2\""));
  const std::string text = compare_runs({a.path()}, {b.path()});
  EXPECT_THAT(text, HasSubstr("[31m 1 2"));
  EXPECT_EQ(text.find_first_of("\x1b\r"), std::string::npos);
  EXPECT_THAT(text, Not(HasSubstr("\u009b")));
}

TEST_F(RunComparison, DifferentScorersAreCalledOut) {
  write_one_method(a.path(), "final", {1}, "gsm8k/v1");
  write_one_method(b.path(), "final", {1}, "gsm8k/v2");
  EXPECT_THAT(compare_runs({a.path()}, {b.path()}), HasSubstr("the accuracies do not compare"));
}

TEST_F(RunComparison, SettingsThatDifferAreListed) {
  const TemporaryDirectory directory;
  const auto evaluated = [&](const char* name, const Json& settings) {
    write_one_method(directory / name, "final", {1});
    Json summary = Json::parse(read_file(directory / name / "summary.json"));
    summary["models"]["final"]["gsm8k"]["jacobi"].update(settings);
    write_text(directory / name / "summary.json", summary.dump());
    return ComparedRun{directory / name};
  };
  const ComparedRun greedy =
      evaluated("a", {{"block_size", 8}, {"samples_per_problem", 1}, {"max_new_tokens", 24}});
  const ComparedRun sampled = evaluated(
      "b",
      {{"block_size", 8}, {"temperature", 1.0}, {"samples_per_problem", 3}, {"max_new_tokens", 1}});
  EXPECT_THAT(compare_runs(greedy, sampled),
              HasSubstr("- final, gsm8k, jacobi: measured with different settings: temperature – → "
                        "1, samples_per_problem 1 → 3, max_new_tokens 24 → 1\n"));
  EXPECT_THAT(compare_runs(greedy, greedy), Not(HasSubstr("different settings")));
}

TEST_F(RunComparison, AccuracyByEachRuleIsCompared) {
  const TemporaryDirectory directory;
  for (const char* name : {"a", "b"}) {
    write_one_method(directory / name, "final", {0, 1});
    Json summary = Json::parse(std::ifstream(directory / name / "summary.json"));
    summary["models"]["final"]["gsm8k"]["jacobi"]["rule_accuracy"] = {
        {"string", 0.25}, {"value", *name == 'a' ? 0.5 : 0.625}};
    write_text(directory / name / "summary.json", summary.dump());
  }
  EXPECT_THAT(compare_runs({directory / "a"}, {directory / "b"}),
              HasSubstr("- final, gsm8k, jacobi: by rule string 25.0 % → 25.0 %, value 50.0 % → "
                        "62.5 %\n"));
}

TEST_F(RunComparison, TheOnlyOtherModelsArePaired) {
  write_one_method(a.path(), "sft", {1});
  write_one_method(b.path(), "cllm", {2});
  EXPECT_THAT(compare_runs({a.path()}, {b.path()}), HasSubstr("sft → cllm"));
}

TEST_F(RunComparison, WhatOneSideLacksIsNamed) {
  write_one_method(a / "evaluation", "final", {1});
  write_text(b / "run.json", "{}");
  EXPECT_THAT(compare_runs({a.path()}, {b.path()}), HasSubstr("only in A: final, gsm8k, jacobi"));
  EXPECT_THAT(compare_runs({b.path()}, {a.path()}), HasSubstr("only in B: final, gsm8k, jacobi"));
}

TEST_F(RunComparison, WhatIsNoRunIsRefused) {
  write_one_method(a.path(), "final", {1});
  for (const auto& path : {b.path(), b / "absent"}) {
    EXPECT_THAT(test::message_of<DataError>([&] { return compare_runs({a.path()}, {path}); }),
                AllOf(HasSubstr(path.string()), HasSubstr("is neither run")));
  }
}

TEST_F(RunComparison, GarbledFilesAreNamed) {
  write_one_method(a.path(), "final", {1});
  const auto refused = [&](const std::string& named) {
    EXPECT_THAT(test::message_of<DataError>([&] { return compare_runs({a.path()}, {b.path()}); }),
                HasSubstr(named))
        << "accepted: " << named;
  };
  write_text(b / "summary.json", "{\"models\": ");
  refused("summary.json");
  write_text(b / "summary.json", "{\"models\": []}");
  refused("summary.json");
  write_one_method(b.path(), "final", {1});
  const auto samples = b / "final/gsm8k.jacobi.jsonl";
  std::filesystem::resize_file(samples, std::filesystem::file_size(samples) - 9);
  refused("gsm8k.jacobi.jsonl:40");
  write_text(samples, "{\"index\": 1}\n");
  refused("gsm8k.jacobi.jsonl:1");
}

TEST(EvaluationDirectory, IsFoundInARunASweepAndItself) {
  const TemporaryDirectory a;
  EXPECT_EQ(evaluation_directory_of(a.path()), std::filesystem::path());
  write_text(a / "sweep/summary.json", "{}");
  EXPECT_EQ(evaluation_directory_of(a.path()), a / "sweep");
  write_text(a / "evaluation/summary.json", "{}");
  EXPECT_EQ(evaluation_directory_of(a.path()), a / "evaluation");
  EXPECT_EQ(evaluation_directory_of(a / "evaluation"), a / "evaluation");
}

}  // namespace
}  // namespace jforge
