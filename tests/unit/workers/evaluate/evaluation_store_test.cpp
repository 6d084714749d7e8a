#include "workers/evaluate/evaluation_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"
#include "tests/unit/workers/evaluate/evaluation_fixture.h"
#include "workers/evaluate/evaluation_summary.h"

namespace jforge {
namespace {

using test::TemporaryDirectory;
using test::write_text;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

constexpr const char* kSettings = "aabbccddeeff0011";

ProblemSet problem_set() {
  ProblemSet set;
  set.choice.name = "gsm8k";
  set.choice.label = "gsm8k";
  set.task = make_task("gsm8k");
  set.max_new_tokens = 8;
  for (std::int64_t index = 0; index < 3; ++index) {
    Problem problem;
    problem.index = index;
    problem.hash = std::to_string(index);
    problem.prompt_text = "prompt " + problem.hash;
    set.problems.push_back(problem);
  }
  return set;
}

std::string finished(std::int64_t index, std::int64_t attempt) {
  SampleRecord record;
  record.index = index;
  record.id = "gsm8k/" + std::to_string(index);
  record.prompt_hash = std::to_string(index);
  record.settings = kSettings;
  record.tokens = 4;
  record.forwards = 3;
  record.token_hash = "0123456789abcdef";
  record.verdict = "pass";
  return to_line(record, SampleTiming{.attempt = attempt, .ranks = 2, .batch_prompts = 1}) + "\n";
}

/// A network file system may show another host's part late.
TEST(EvaluationStore, WhatAnEarlierAttemptsPartShowsAfterThePlanCountsOnce) {
  const TemporaryDirectory directory;
  const EvaluationStore store(directory.path(), "base", 42);
  const ProblemSet set = problem_set();
  const DecodingMethod method = make_decoding_method("ar", {}, 42);
  MethodRun run{set, method, kSettings, SampleFiles(store.model_directory(), "gsm8k", "ar")};
  write_text(run.files.part(2, 0, 2), finished(0, 2));
  store.plan(run);
  EXPECT_EQ(run.attempt, 3);
  EXPECT_THAT(run.done, ElementsAre(0));

  write_text(run.files.part(1, 1, 2), finished(1, 1));
  store.merge(run, {finished(1, 3), finished(2, 3)}, Json::object());
  std::vector<std::int64_t> merged;
  for (const SampleRecord& record : run.files.read_merged()) {
    merged.push_back(record.index);
    EXPECT_EQ(record.prompt, "prompt " + std::to_string(record.index));
  }
  EXPECT_THAT(merged, ElementsAre(0, 1, 2));
  EXPECT_THAT(run.files.parts(), IsEmpty());
}

TEST(EvaluationStore, ComparisonsWithABaselineOfOtherSettingsGo) {
  const TemporaryDirectory directory;
  const EvaluationStore store(directory.path(), "base", 42);
  std::filesystem::create_directories(store.model_directory());
  const ProblemSet set = problem_set();
  const DecodingMethod ar = make_decoding_method("ar", {}, 42);
  const DecodingMethod jacobi = make_decoding_method("jacobi", {}, 42);
  const auto evaluate = [&](const DecodingMethod& method, const std::string& settings) {
    MethodRun run{set, method, settings,
                  SampleFiles(store.model_directory(), "gsm8k", method.label)};
    store.merge(run, {finished(0, 1), finished(1, 1), finished(2, 1)}, Json::object());
    return run;
  };
  const auto figures = [&] {
    return Json(EvaluationSummary(directory.path()).figures("base", "gsm8k", "jacobi"));
  };
  const MethodRun first = evaluate(ar, "1");
  const MethodRun second = evaluate(jacobi, "2");
  store.compare({&first, &second});
  store.set_speed("gsm8k", "jacobi",
                  Json::array({{{"batch_prompts", 1},
                                {"tokens_per_second", 90},
                                {"speed_up", 0.75},
                                {"speed_up_low", 0.5},
                                {"speed_up_with_prefill", 0.75}}}));
  (void)evaluate(ar, "1");  // after its file was lost
  EXPECT_EQ(figures().at("disagreements_with_ar"), 0);
  EXPECT_EQ(figures().at("speed").at(0).at("speed_up"), 0.75);
  (void)evaluate(ar, "3");
  const Json left = figures();
  EXPECT_EQ(left.at("settings"), "2");
  EXPECT_FALSE(left.contains("disagreements_with_ar"));
  const Json& speed = left.at("speed").at(0);
  EXPECT_EQ(speed.at("tokens_per_second"), 90) << "which is the method's own";
  for (const char* key : {"speed_up", "speed_up_low", "speed_up_with_prefill"}) {
    EXPECT_TRUE(speed.at(key).is_null()) << key;
  }
}

}  // namespace
}  // namespace jforge
