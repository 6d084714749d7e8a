#include "workers/evaluate/evaluation_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/workers/evaluate/evaluation_fixture.h"

namespace jforge {
namespace {

using test::read_text;
using test::TemporaryDirectory;
using test::write_text;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

TimedSample sample(std::int64_t index, std::int64_t tokens, std::int64_t forwards,
                   const std::string& verdict, SampleTiming timing) {
  TimedSample result;
  result.record.index = index;
  result.record.prompt_hash = std::to_string(index);
  result.record.token_hash = std::to_string(tokens);
  result.record.tokens = tokens;
  result.record.forwards = forwards;
  result.record.verdict = verdict;
  result.record.stopped_by_eos = verdict == "pass";
  result.timing = timing;
  return result;
}

TEST(Summary, FiguresOfHandMadeSamples) {
  const std::vector<TimedSample> samples = {
      sample(0, 10, 5, "pass",
             {.attempt = 1, .rank = 0, .decode_seconds = 1, .prefill_seconds = 1}),
      sample(1, 30, 5, "fail",
             {.attempt = 1, .rank = 1, .decode_seconds = 4, .prefill_seconds = 1}),
      sample(2, 1, 0, "pass", {.attempt = 1, .rank = 0, .decode_seconds = 2, .prefill_seconds = 5}),
      sample(3, 9, 3, "timeout",
             {.attempt = 1, .rank = 1, .decode_seconds = 3, .prefill_seconds = 0}),
  };
  const Json figures = summarise_samples(samples, 42);
  EXPECT_DOUBLE_EQ(figures.at("accuracy"), 0.5);
  EXPECT_EQ(figures.at("n"), 4);
  EXPECT_EQ(figures.at("tokens"), 50);
  EXPECT_EQ(figures.at("forwards"), 13);
  EXPECT_EQ(figures.at("stopped_by_eos"), 2);
  EXPECT_EQ(figures.at("timeouts"), 1);
  EXPECT_DOUBLE_EQ(figures.at("tpf"), 46.0 / 13.0);
  EXPECT_DOUBLE_EQ(figures.at("tpf_mean"), (9.0 / 5 + 29.0 / 5 + 8.0 / 3) / 3.0);
  EXPECT_DOUBLE_EQ(figures.at("tpf_with_prefill"), 50.0 / 17.0);
  EXPECT_DOUBLE_EQ(figures.at("tokens_per_second"), 46.0 / 4.0);
  EXPECT_DOUBLE_EQ(figures.at("tokens_per_second_with_prefill"), 50.0 / 7.0);
}

TEST(Summary, SecondsOfAttemptsAddUp) {
  const std::vector<TimedSample> samples = {
      sample(0, 1, 1, "pass", {.attempt = 1, .rank = 0, .decode_seconds = 3, .prefill_seconds = 1}),
      sample(1, 1, 1, "pass", {.attempt = 1, .rank = 1, .decode_seconds = 2, .prefill_seconds = 3}),
      sample(2, 1, 1, "pass", {.attempt = 4, .rank = 0, .decode_seconds = 1, .prefill_seconds = 0}),
  };
  const EvaluationSeconds seconds = slowest_rank_seconds(samples);
  EXPECT_DOUBLE_EQ(seconds.decode, 4.0);
  EXPECT_DOUBLE_EQ(seconds.with_prefill, 6.0);
}

TEST(Summary, FiguresThatDoNotExistAreNull) {
  const std::vector<TimedSample> samples = {sample(0, 1, 0, "pass", {})};
  const Json figures = summarise_samples(samples, 42);
  for (const char* key :
       {"tpf", "tpf_mean", "tokens_per_second", "tokens_per_second_with_prefill"}) {
    EXPECT_TRUE(figures.at(key).is_null()) << key;
  }
  EXPECT_THROW((void)summarise_samples({}, 42), InternalError);
}

TEST(BootstrapTpf, IntervalHoldsTheObservedFigureAndNarrows) {
  const auto width = [](std::int64_t problems) {
    std::vector<DecodingCost> costs;
    for (std::int64_t i = 0; i < problems; ++i) {
      costs.push_back({.sequences = 1, .tokens = 41, .forwards = i % 2 == 0 ? 10 : 20});
    }
    const auto tpf = bootstrap_tpf(costs, 42);
    EXPECT_DOUBLE_EQ(tpf->observed, 80.0 / 30.0);
    EXPECT_LT(tpf->low, tpf->observed);
    EXPECT_GT(tpf->high, tpf->observed);
    EXPECT_GE(tpf->low, 2.0);
    EXPECT_LE(tpf->high, 4.0);
    EXPECT_EQ(bootstrap_tpf(costs, 42)->low, tpf->low) << "equal data, equal figures";
    return tpf->high - tpf->low;
  };
  // By the delta method ± 1.96 · 2.667 · (5 / 15) / sqrt(n).
  EXPECT_NEAR(width(400), 2 * 1.96 * 2.667 / 3 / 20, 0.02);
  EXPECT_NEAR(width(400) / width(1600), 2, 0.2);
}

/// Only forwards count, and a problem may have none.
TEST(BootstrapTpf, ArHasNoSpreadAndNoForwardNoFigure) {
  const std::vector<DecodingCost> ar = {{.sequences = 1, .tokens = 5, .forwards = 4},
                                        {.sequences = 1, .tokens = 50, .forwards = 49},
                                        {.sequences = 1, .tokens = 1, .forwards = 0}};
  const auto tpf = bootstrap_tpf(ar, 42);
  ASSERT_TRUE(tpf.has_value());
  EXPECT_EQ(tpf->low, 1.0);
  EXPECT_EQ(tpf->high, 1.0);
  EXPECT_FALSE(bootstrap_tpf(std::span(ar).last(1), 42).has_value());
  EXPECT_FALSE(bootstrap_tpf({}, 42).has_value());
}

TEST(Summary, AccuracyIntervalsDoNotCollapse) {
  std::vector<TimedSample> samples;
  for (std::int64_t i = 0; i < 20; ++i) {
    samples.push_back(sample(i, 4, 2, "pass", {}));
  }
  const Json all = summarise_samples(samples, 42);
  EXPECT_EQ(all.at("accuracy"), 1.0);
  EXPECT_EQ(all.at("accuracy_high"), 1.0);
  EXPECT_NEAR(all.at("accuracy_low"), 1 - 0.1611, 1e-4);
  for (TimedSample& one : samples) {
    one.record.verdict = "fail";
  }
  const Json none = summarise_samples(samples, 42);
  EXPECT_EQ(none.at("accuracy_low"), 0.0);
  EXPECT_NEAR(none.at("accuracy_high"), 0.1611, 1e-4);
}

TEST(Summary, SeveralSamplesOfAProblem) {
  std::vector<TimedSample> samples;
  for (std::int64_t i = 0; i < 10; ++i) {  // Problem 0: 1 of 5 right, problem 1: 5 of 5.
    samples.push_back(sample(i / 5, 4, 2, i == 2 || i >= 5 ? "pass" : "fail", {}));
    samples.back().record.sample = i % 5;
  }
  const Json figures = summarise_samples(samples, 42);
  EXPECT_EQ(figures.at("n"), 2);
  EXPECT_EQ(figures.at("samples_per_problem"), 5);
  EXPECT_EQ(figures.at("tokens"), 40);
  EXPECT_NEAR(figures.at("accuracy"), (0.2 + 1.0) / 2, 1e-12);
  EXPECT_LT(figures.at("accuracy_low"), 0.2);
  samples.pop_back();
  EXPECT_THROW((void)summarise_samples(samples, 42), InternalError);
}

TEST(Summary, BaseTestsHaveAnAccuracyOfTheirOwn) {
  std::vector<TimedSample> samples = {sample(0, 1, 1, "fail", {}), sample(1, 1, 1, "pass", {})};
  EXPECT_FALSE(summarise_samples(samples, 42).contains("base_accuracy"));
  samples[0].record.base_verdict = "pass";
  EXPECT_EQ(summarise_samples(samples, 42).at("base_accuracy"), 0.5) << "one had no program";
  samples[1].record.base_verdict = "pass";
  EXPECT_EQ(summarise_samples(samples, 42).at("base_accuracy"), 1.0);
  EXPECT_EQ(summarise_samples(samples, 42).at("accuracy"), 0.5);
}

TEST(Summary, EveryRuleHasAnAccuracyOfItsOwn) {
  std::vector<TimedSample> samples = {sample(0, 1, 1, "fail", {}), sample(1, 1, 1, "pass", {}),
                                      sample(2, 1, 1, "fail", {}), sample(3, 1, 1, "fail", {})};
  EXPECT_FALSE(summarise_samples(samples, 42).contains("rule_accuracy"));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i].record.rules = {{"string", i == 1}, {"value", i != 2}};
  }
  const Json figures = summarise_samples(samples, 42);
  EXPECT_EQ(figures.at("rule_accuracy").dump(), R"({"string":0.25,"value":0.75})");
  EXPECT_EQ(figures.at("accuracy"), 0.25);
  samples[3].record.rules.pop_back();
  EXPECT_THROW((void)summarise_samples(samples, 42), InternalError);
  samples[3].record.rules.emplace_back("other", true);
  EXPECT_THROW((void)summarise_samples(samples, 42), InternalError);
}

TEST(Disagreements, CountsDifferingTokens) {
  const std::vector<SampleRecord> ar = {sample(0, 5, 5, "", {}).record,
                                        sample(1, 6, 6, "", {}).record};
  std::vector<SampleRecord> other = {sample(0, 5, 2, "", {}).record,
                                     sample(1, 7, 3, "", {}).record};
  EXPECT_EQ(count_disagreements(ar, ar), 0);
  EXPECT_EQ(count_disagreements(ar, other), 1);
  other[0].prompt_hash = "other";
  EXPECT_THROW((void)count_disagreements(ar, other), InternalError);
  other.pop_back();
  EXPECT_THROW((void)count_disagreements(ar, other), InternalError);
}

TEST(SummaryFile, ModelsMergeAndOtherEntriesStay) {
  const TemporaryDirectory directory;
  {
    EvaluationSummary summary(directory.path());
    summary.set("base", "gsm8k", "ar", {{"accuracy", 0.5}, {"settings", "s1"}});
    summary.set_complete("base", true);
    summary.set_complete("base", true);
    summary.publish();
  }
  EvaluationSummary summary(directory.path());
  EXPECT_TRUE(summary.is_current("base", "gsm8k", "ar", "s1"));
  EXPECT_FALSE(summary.is_current("base", "gsm8k", "ar", "s2"));
  EXPECT_FALSE(summary.is_current("base", "gsm8k", "jacobi", "s1"));
  EXPECT_FALSE(summary.is_current("final", "gsm8k", "ar", "s1"));
  summary.set("final", "gsm8k", "ar", {{"accuracy", 0.25}, {"settings", "s3"}});
  summary.set_figure("final", "gsm8k", "ar", "disagreements_with_ar", 0);
  summary.publish();
  Json json = Json::parse(read_text(directory / "summary.json"));
  EXPECT_EQ(json.at("models").at("base").at("gsm8k").at("ar").at("accuracy"), 0.5);
  EXPECT_EQ(json.at("models").at("final").at("gsm8k").at("ar").at("disagreements_with_ar"), 0);
  EXPECT_EQ(json.at("complete"), Json({"base"}));
  summary.set_complete("base", false);
  summary.publish();
  json = Json::parse(read_text(directory / "summary.json"));
  EXPECT_TRUE(json.at("complete").empty());
}

TEST(SummaryFile, WhatIsNoSummaryIsRefusedByName) {
  const TemporaryDirectory directory;
  for (const char* text :
       {"", "{", "[]", "{}", "{\"models\": {}}", "{\"models\": [], \"complete\": []}",
        "{\"models\": {}, \"complete\": 3}"}) {
    write_text(directory / "summary.json", text);
    EXPECT_THAT(test::message_of<DataError>([&] { EvaluationSummary summary(directory.path()); }),
                HasSubstr("summary.json"))
        << "accepted: " << text;
  }
}

TEST(SummaryFile, BrokenUseIsRefused) {
  const TemporaryDirectory directory;
  EvaluationSummary summary(directory.path());
  EXPECT_THROW(summary.set("m", "t", "ar", {{"accuracy", 1}}), InternalError);
  EXPECT_THROW(summary.set_figure("m", "t", "ar", "x", 1), InternalError);
}

}  // namespace
}  // namespace jforge
