// No stop, failure, crash or changed setting loses, repeats or mixes samples.

#include <functional>

#include "runtime/text_seal.h"
#include "tests/distributed/evaluate_fixture.h"

namespace jforge {
namespace {

using namespace jforge::test;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(EvaluateTest, OtherWeightsUnderTheSameNameAreRefusedWhereAsked) {
  config_.methods = {"ar"};
  config_.limit = 3;
  const RandomModel other(6);
  const auto run = [&](const RandomModel& model, bool refuse) {
    EvaluationContext strict = context(true);
    strict.refuse_other_weights = refuse;
    const bool finished =
        evaluate_model(config_, model.under_test("base", path_ / "model"), strict, path_ / "out");
    test_world().barrier();
    return finished;
  };
  EXPECT_TRUE(run(model_, true));
  EXPECT_TRUE(run(model_, true));
  const Json before = figures("out", "ar");
  EXPECT_THROW((void)run(other, true), ConfigError);
  test_world().barrier();
  EXPECT_EQ(figures("out", "ar"), before);
  EXPECT_TRUE(run(other, false));
  EXPECT_NE(figures("out", "ar").at("weights"), before.at("weights"));
}

TEST_F(EvaluateTest, FiguresOfReplacedWeightsLeaveTheSummaryBeforeAnythingElse) {
  config_.methods = {"ar", "jacobi"};
  config_.limit = 3;
  ASSERT_TRUE(evaluate("out"));
  const RandomModel other(6);
  // Re-evaluates one method only, and not to its end.
  config_.methods = {"ar"};
  arm_alone("interrupt", 0, 1);
  EXPECT_FALSE(evaluate_model(config_, other.under_test("base", path_ / "model"), context(true),
                              path_ / "out"));
  test_world().barrier();
  const Json summary = Json::parse(read_text(path_ / "out/summary.json"));
  EXPECT_FALSE(summary.at("models").contains("base")) << summary.dump(2);
  EXPECT_THAT(complete("out"), IsEmpty());
}

TEST_F(EvaluateTest, SamplesOfMixedRankCountsHaveNoCount) {
  config_.limit = 3;
  ASSERT_TRUE(evaluate("whole"));
  EXPECT_EQ(figures("whole", "jacobi").at("ranks"), test_world().size());
  if (root()) {
    for (const std::string method : {"ar", "jacobi"}) {
      const auto records = files("whole", method).read_merged();
      write_text(files("out", method).part(1, 0, 97),
                 to_line(records.front(), SampleTiming{.attempt = 1,
                                                       .rank = 0,
                                                       .ranks = 97,
                                                       .batch_prompts = config_.batch_prompts,
                                                       .decode_seconds = 1,
                                                       .prefill_seconds = 1}) +
                     "\n");
    }
  }
  test_world().barrier();
  ASSERT_TRUE(evaluate("out"));
  EXPECT_TRUE(figures("out", "ar").at("ranks").is_null());
  EXPECT_TRUE(figures("out", "jacobi").at("ranks").is_null());
}

TEST_F(EvaluateTest, ASecondCallDecodesNothing) {
  ASSERT_TRUE(evaluate("out"));
  const std::string summary = read_text(path_ / "out/summary.json");
  const std::string merged = read_text(files("out", "jacobi").merged());
  test_world().barrier();  // before rank 0 damages it
  config_.batch_prompts = 5;
  ASSERT_TRUE(evaluate("out"));
  EXPECT_EQ(samples_of_all_ranks(), 0);
  EXPECT_EQ(read_text(path_ / "out/summary.json"), summary);
  EXPECT_EQ(read_text(files("out", "jacobi").merged()), merged);
}

TEST_F(EvaluateTest, WhatIsDamagedIsEvaluatedAnew) {
  ASSERT_TRUE(evaluate("out"));
  const std::string merged = read_text(files("out", "jacobi").merged());
  test_world().barrier();  // before rank 0 damages it
  const auto flip = [](const fs::path& path) {
    std::string text = read_text(path);
    text[text.size() / 2] = static_cast<char>(text[text.size() / 2] ^ 1);
    write_text(path, text);
  };
  struct Damage {
    fs::path path;
    std::function<void(const fs::path&)> work;
    std::int64_t samples;
  };
  const auto cut = [](const fs::path& path) {
    write_text(path, read_text(path).substr(0, read_text(path).rfind('{')));
  };
  const auto remove = [](const fs::path& path) { fs::remove(path); };
  const auto empty = [](const fs::path& path) { write_text(path, ""); };
  const auto foreign = [](const fs::path& path) {
    write_text(path, R"({"models": {"base": 5}, "complete": [], "weights": 1})");
  };
  const fs::path samples = files("out", "jacobi").merged();
  const fs::path summary = path_ / "out/summary.json";
  const fs::path model = path_ / "out/base/model.json";
  for (const Damage& damage : std::vector<Damage>{{samples, flip, kProblems},
                                                  {samples, cut, kProblems},
                                                  {samples, remove, kProblems},
                                                  {summary, flip, 2 * kProblems},
                                                  {summary, cut, 2 * kProblems},
                                                  {summary, empty, 2 * kProblems},
                                                  {summary, foreign, 2 * kProblems},
                                                  {model, flip, 0},
                                                  {model, empty, 0},
                                                  {model, foreign, 0}}) {
    if (root()) {
      damage.work(damage.path);
    }
    test_world().barrier();
    ASSERT_TRUE(evaluate("out"));
    EXPECT_EQ(samples_of_all_ranks(), damage.samples) << damage.path;
    EXPECT_EQ(read_text(samples), merged);
    EXPECT_THAT(complete("out"), ElementsAre("base"));
    if (root()) {
      verify_sealed(summary);
      verify_sealed(model);
    }
    test_world().barrier();
  }
}

TEST_F(EvaluateTest, ADamagedLineOfAPartIsEvaluatedAgain) {
  config_.methods = {"jacobi"};
  ASSERT_TRUE(evaluate("whole"));
  arm_alone("interrupt", last_rank(), 2);
  EXPECT_FALSE(evaluate("out"));
  const std::int64_t before = samples_of_all_ranks();
  clear_stop_request();
  if (root()) {
    const fs::path part = files("out", "jacobi").parts().front();
    std::string text = read_text(part);
    text[text.find("\"tokens\":") + 9] = '9';  // still JSON
    write_text(part, text);
  }
  test_world().barrier();
  ASSERT_TRUE(evaluate("out"));
  EXPECT_EQ(samples_of_all_ranks(), kProblems - before + 1);
  EXPECT_EQ(read_text(files("out", "jacobi").merged()),
            read_text(files("whole", "jacobi").merged()));
}

TEST_F(EvaluateTest, AStopOnOneRankStopsAllAndTheNextCallGoesOn) {
  ASSERT_TRUE(evaluate("whole"));
  for (const std::string method : {"ar", "jacobi"}) {
    const std::string output = "stopped-" + method;
    config_.methods = {method};
    arm_alone("interrupt", last_rank(), 2);
    EXPECT_FALSE(evaluate(output));
    EXPECT_FALSE(fs::exists(files(output, method).merged()));
    EXPECT_THAT(complete(output), IsEmpty());
    const std::int64_t before = samples_of_all_ranks();
    EXPECT_GE(before, 2);
    EXPECT_LT(before, kProblems);
    clear_stop_request();
    test_world().barrier();
    ASSERT_TRUE(evaluate(output));
    EXPECT_EQ(before + samples_of_all_ranks(), kProblems);
    EXPECT_EQ(read_text(files(output, method).merged()),
              read_text(files("whole", method).merged()));
    EXPECT_THAT(files(output, method).parts(), IsEmpty());
    EXPECT_EQ(figures(output, method).at("tokens"), figures("whole", method).at("tokens"));
  }
}

TEST_F(EvaluateTest, AStopBeforeTheStartDoesNothing) {
  request_stop();
  EXPECT_FALSE(evaluate("out"));
  EXPECT_FALSE(fs::exists(path_ / "out/summary.json"));
}

TEST_F(EvaluateTest, AFailureOnOneRankReachesAllAndTheNextCallGoesOn) {
  ASSERT_TRUE(evaluate("whole"));
  expect_failure<InternalError>("out", arm_alone("throw", last_rank(), 3));
  const std::int64_t before = samples_of_all_ranks();
  if (root()) {
    // As after a kill within a write.
    const auto part = files("out", "ar").parts().front();
    write_text(part, read_text(part) + "{\"index\": 3, \"i");
  }
  test_world().barrier();
  ASSERT_TRUE(evaluate("out"));
  EXPECT_GT(before, 2);
  for (const std::string method : {"ar", "jacobi"}) {
    EXPECT_EQ(read_text(files("out", method).merged()), read_text(files("whole", method).merged()));
  }
}

TEST_F(EvaluateTest, PartsOfAnotherRankCountCount) {
  config_.methods = {"jacobi"};
  ASSERT_TRUE(evaluate("whole"));
  const std::string whole = read_text(files("whole", "jacobi").merged());
  const auto records = files("whole", "jacobi").read_merged();
  if (root()) {
    // Ten samples by three ranks in two attempts, one sample twice.
    std::map<fs::path, std::string> parts;
    for (std::int64_t i = 0; i < 10; ++i) {
      const SampleTiming timing{.attempt = i < 6 ? 1 : 4,
                                .rank = static_cast<Rank>(i % 3),
                                .ranks = 97,
                                .batch_prompts = config_.batch_prompts,
                                .decode_seconds = 100,
                                .prefill_seconds = 1};
      parts[files("out", "jacobi").part(timing.attempt, timing.rank, 3)] +=
          to_line(records[static_cast<std::size_t>(i)], timing) + "\n";
    }
    parts[files("out", "jacobi").part(2, 0, 1)] =
        to_line(records[3], SampleTiming{.attempt = 2}) + "\n";
    for (const auto& [path, text] : parts) {
      write_text(path, text);
    }
  }
  test_world().barrier();
  ASSERT_TRUE(evaluate("out"));
  EXPECT_EQ(samples_of_all_ranks(), kProblems - 10);
  EXPECT_EQ(read_text(files("out", "jacobi").merged()), whole);
  // The figure includes earlier attempts' time.
  EXPECT_GT(figures("out", "jacobi").at("decode_seconds"), 200.0);
  EXPECT_LT(figures("out", "jacobi").at("decode_seconds"), 260.0);
  // A speed over several rank counts does not compare.
  EXPECT_TRUE(figures("out", "jacobi").at("ranks").is_null());
  EXPECT_EQ(figures("out", "jacobi").at("batch_prompts"), config_.batch_prompts);
  EXPECT_EQ(figures("whole", "jacobi").at("ranks"), test_world().size());
}

TEST_F(EvaluateTest, OtherSettingsNeverMix) {
  config_.methods = {"jacobi"};
  config_.decoding["block_size"] = std::int64_t{4};
  ASSERT_TRUE(evaluate("small"));
  config_.decoding["block_size"] = std::int64_t{8};
  arm_alone("interrupt", 0, 2);
  ASSERT_FALSE(evaluate("out"));
  clear_stop_request();
  test_world().barrier();
  config_.decoding["block_size"] = std::int64_t{4};
  ASSERT_TRUE(evaluate("out"));
  EXPECT_EQ(samples_of_all_ranks(), kProblems);
  EXPECT_EQ(read_text(files("out", "jacobi").merged()),
            read_text(files("small", "jacobi").merged()));
  // Finished results of other settings are replaced; meanwhile the model is incomplete.
  config_.decoding["block_size"] = std::int64_t{8};
  arm_alone("interrupt", 0, 2);
  EXPECT_FALSE(evaluate("out"));
  EXPECT_THAT(complete("out"), IsEmpty());
}

TEST_F(EvaluateTest, ACrashBetweenSummaryAndCleaningLeavesNothingBehind) {
  config_.methods = {"ar"};
  ASSERT_TRUE(evaluate("out"));
  if (root()) {
    write_text(files("out", "ar").part(1, 0, 1), "");
  }
  test_world().barrier();
  ASSERT_TRUE(evaluate("out"));
  EXPECT_THAT(files("out", "ar").parts(), IsEmpty());
  // Also after a crash left the merged file of other settings without its figures.
  config_.limit = 5;
  ASSERT_TRUE(evaluate("other"));
  const std::string whole = read_text(files("out", "ar").merged());
  config_.limit.reset();
  test_world().barrier();
  if (root()) {
    write_text(files("out", "ar").merged(), read_text(files("other", "ar").merged()));
  }
  test_world().barrier();
  ASSERT_TRUE(evaluate("out"));
  EXPECT_EQ(read_text(files("out", "ar").merged()), whole);
  test_world().barrier();
  // Without the merged file, the figures alone do not suffice.
  if (root()) {
    fs::remove(files("out", "ar").merged());
  }
  test_world().barrier();
  ASSERT_TRUE(evaluate("out"));
  EXPECT_EQ(samples_of_all_ranks(), kProblems);
}

}  // namespace
}  // namespace jforge
