// Speeds by interleaved repeats, which a restart neither loses nor doubles.

#include "tests/distributed/evaluate_fixture.h"
#include "workers/evaluate/speed_record.h"

namespace jforge {
namespace {

using namespace jforge::test;
using ::testing::IsEmpty;

class SpeedTest : public EvaluateTest {
 protected:
  void SetUp() override {
    EvaluateTest::SetUp();
    config_.limit = 5;
    config_.speed_problems = 3;
    config_.speed_repeats = 3;
  }

  [[nodiscard]] std::vector<SpeedRepeat> repeats(const std::string& output) const {
    std::istringstream lines(read_text(files(output, "ar").speed()));
    std::vector<SpeedRepeat> found;
    for (std::string line; std::getline(lines, line);) {
      found.push_back(parse_speed_repeat(line, "test"));
    }
    return found;
  }

  /// Each (batch, repeat) once, in order of measurement.
  void expect_whole(const std::string& output) const {
    const auto all = repeats(output);
    ASSERT_EQ(all.size(), 6U);
    for (std::int32_t i = 0; i < 6; ++i) {
      const SpeedRepeat& repeat = all[static_cast<std::size_t>(i)];
      EXPECT_EQ(repeat.batch_prompts, i % 2 == 0 ? 1 : 2);
      EXPECT_EQ(repeat.repeat, i / 2);
      EXPECT_EQ(repeat.problems, 3);
      EXPECT_EQ(repeat.ranks, test_world().size());
      ASSERT_EQ(repeat.passes.size(), 2U);
      EXPECT_EQ(repeat.passes[0].method, "ar");
      EXPECT_EQ(repeat.passes[1].method, "jacobi");
      for (const SpeedPass& pass : repeat.passes) {
        EXPECT_EQ(pass.sequences, 3 * test_world().size()) << "every rank decodes the same";
        EXPECT_EQ(pass.tokens, repeat.passes.front().tokens) << "and the same text";
        const auto first = static_cast<std::size_t>(i / 2 * 2);
        EXPECT_EQ(pass.tokens, all[first].passes.front().tokens) << "at either batch";
        EXPECT_GT(pass.decode_seconds, 0);
        EXPECT_GT(pass.prefill_seconds, 0);
      }
    }
  }
};

TEST_F(SpeedTest, EveryMethodIsMeasuredInTurnAtBothBatches) {
  ASSERT_TRUE(evaluate("out"));
  expect_whole("out");
  const Json ar = figures("out", "ar").at("speed");
  const Json jacobi = figures("out", "jacobi").at("speed");
  ASSERT_EQ(ar.size(), 2U);
  ASSERT_EQ(jacobi.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(jacobi[i].at("batch_prompts"), i == 0 ? 1 : 2);
    EXPECT_EQ(jacobi[i].at("repeats"), 3);
    EXPECT_LE(jacobi[i].at("speed_up_low"), jacobi[i].at("speed_up"));
    EXPECT_GE(jacobi[i].at("speed_up_high"), jacobi[i].at("speed_up"));
    EXPECT_NEAR(jacobi[i].at("speed_up").get<double>(),
                jacobi[i].at("tokens_per_second").get<double>() /
                    ar[i].at("tokens_per_second").get<double>(),
                1e-9);
  }
  EXPECT_FALSE(figures("out", "jacobi").contains("speed_up")) << "not from the accuracy's passes";
}

TEST_F(SpeedTest, ASecondCallMeasuresNothingAndZeroMeasuresNone) {
  config_.speed_problems = 0;
  ASSERT_TRUE(evaluate("out"));
  EXPECT_FALSE(fs::exists(files("out", "ar").speed()));
  EXPECT_FALSE(figures("out", "jacobi").contains("speed"));
  config_.speed_problems = 3;
  ASSERT_TRUE(evaluate("out"));
  EXPECT_EQ(samples_of_all_ranks(), 0) << "the samples are there";
  expect_whole("out");
  const std::string lines = read_text(files("out", "ar").speed());
  const std::string summary = read_text(path_ / "out/summary.json");
  ASSERT_TRUE(evaluate("out"));
  EXPECT_EQ(read_text(files("out", "ar").speed()), lines);
  EXPECT_EQ(read_text(path_ / "out/summary.json"), summary);
}

TEST_F(SpeedTest, EveryMethodIsWarmedUpAndRepeatsTakeOtherProblems) {
  config_.speed_problems = 0;
  ASSERT_TRUE(evaluate("out"));
  config_.speed_problems = 3;
  std::map<std::string, std::vector<PromptId>> decoded;
  std::vector<DecodingMethod> methods;
  for (const char* const name : {"ar", "jacobi"}) {
    methods.push_back(make_decoding_method(name, config_.decoding, 42));
    methods.back().make = [make = methods.back().make, &ids = decoded[name]](DecodeRequest r) {
      ids.push_back(r.id);
      return make(std::move(r));
    };
  }
  ASSERT_TRUE(evaluate("out", methods));
  expect_whole("out");
  // Five problems for the plan, a batch of one and one of two, then three repeats of three problems
  // per batch size; after the fifth the first follows.
  std::vector<PromptId> expected;
  for (const int index :
       {0, 1, 2, 3, 4, 0, 0, 1, 0, 1, 2, 0, 1, 2, 3, 4, 0, 3, 4, 0, 1, 2, 3, 1, 2, 3}) {
    expected.push_back(sample_id(index, 0));
  }
  EXPECT_EQ(decoded.at("ar"), expected);
  EXPECT_EQ(decoded.at("jacobi"), expected);
}

TEST_F(SpeedTest, AStopOrFailureLosesAndDoublesNothing) {
  for (const std::string fault : {"interrupt", "throw"}) {
    const std::string output = "out-" + fault;
    arm_faults(fault + "@speed:" + std::to_string(last_rank()) + ":3", test_world().rank());
    if (fault == "throw") {
      EXPECT_THROW((void)evaluate(output), InternalError);
      test_world().barrier();
    } else {
      EXPECT_FALSE(evaluate(output));
    }
    EXPECT_THAT(complete(output), IsEmpty());
    const std::string before = read_text(files(output, "ar").speed());
    EXPECT_EQ(repeats(output).size(), 3U);
    arm_faults("", test_world().rank());
    clear_stop_request();
    test_world().barrier();
    if (root()) {
      // As after a kill within a write.
      write_text(files(output, "ar").speed(), before + "{\"settings\": \"");
    }
    test_world().barrier();
    ASSERT_TRUE(evaluate(output));
    EXPECT_EQ(samples_of_all_ranks(), 0);
    expect_whole(output);
    EXPECT_EQ(read_text(files(output, "ar").speed()).substr(0, before.size()), before);
    EXPECT_THAT(complete(output), ::testing::ElementsAre("base"));
  }
}

TEST_F(SpeedTest, WhatWasBegunElsewhereIsBegunAnew) {
  ASSERT_TRUE(evaluate("out"));
  auto begun = repeats("out");
  begun.resize(2);
  if (root()) {
    std::string text;
    for (SpeedRepeat& repeat : begun) {
      repeat.place = "97 ranks, 1 threads, cpu, elsewhere";
      text += to_line(repeat) + "\n";
    }
    write_text(files("out", "ar").speed(), text);
  }
  test_world().barrier();
  ASSERT_TRUE(evaluate("out"));
  expect_whole("out");
}

TEST_F(SpeedTest, ADamagedFileIsNamedOnEveryRank) {
  ASSERT_TRUE(evaluate("out"));
  if (root()) {
    write_text(files("out", "ar").speed(), "{\"settings\": 1}\n");
  }
  test_world().barrier();
  expect_failure<DataError>("out", "gsm8k.speed:1: not a measured speed");
}

}  // namespace
}  // namespace jforge
