#include "workers/evaluate/speed_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "runtime/error.h"
#include "runtime/random.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/workers/evaluate/evaluation_fixture.h"
#include "workers/evaluate/evaluate_config.h"
#include "workers/evaluate/speed_measurement.h"

namespace jforge {
namespace {

using test::read_text;
using test::TemporaryDirectory;
using test::write_text;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

/// 100 tokens after the first in `seconds`; another method is `gain` times as fast.
SpeedRepeat repeat(std::int32_t number, double seconds, double gain) {
  return {.settings = "s",
          .place = "here",
          .batch_prompts = 1,
          .problems = 4,
          .ranks = 2,
          .threads = 3,
          .repeat = number,
          .load = {.load_per_core = 0.5, .slowest_megahertz = 2000, .fastest_megahertz = 2000},
          .passes = {{"ar", 8, 108, seconds, 0.25 * seconds},
                     {"jacobi", 8, 108, seconds / gain, 0.25 * seconds}}};
}

TEST(GeometricInterval, IsStudentsTOfTheLogarithms) {
  // Logarithms −1, 0 and 1: mean 0, standard deviation 1, t(0.975, 2) = 4.303.
  const std::array values = {std::exp(-1.0), 1.0, std::exp(1.0)};
  const auto interval = geometric_interval(values);
  ASSERT_TRUE(interval.has_value());
  EXPECT_NEAR(interval->mean, 1, 1e-12);
  EXPECT_NEAR(std::log(interval->high), 4.303 / std::sqrt(3.0), 1e-3);
  EXPECT_NEAR(std::log(interval->low), -4.303 / std::sqrt(3.0), 1e-3);
}

TEST(GeometricInterval, CoversWhatItShouldInNineteenOfTwenty) {
  RandomStream stream(3, RandomPurpose::test);
  constexpr int kTrials = 2000;
  int covered = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::array<double, 5> values{};
    for (double& value : values) {
      double sum = 0;  // Twelve uniform draws: nearly normal, mean 6, variance 1.
      for (int i = 0; i < 12; ++i) {
        sum += stream.uniform();
      }
      value = 1.5 * std::exp(0.3 * (sum - 6));
    }
    const auto interval = geometric_interval(values);
    covered += interval->low <= 1.5 && 1.5 <= interval->high ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(covered) / kTrials, 0.95, 0.02);
}

TEST(GeometricInterval, NeedsTwoPositiveValues) {
  EXPECT_FALSE(geometric_interval(std::array{3.0}).has_value());
  EXPECT_FALSE(geometric_interval(std::array{3.0, 0.0}).has_value());
  EXPECT_FALSE(geometric_interval(std::array{3.0, std::nan("")}).has_value());
  EXPECT_FALSE(geometric_interval(std::array{3.0, HUGE_VAL}).has_value());
}

TEST(SpeedFigures, ASlowSpellOfTheMachineLeavesTheRatioAlone) {
  const std::vector<SpeedRepeat> repeats = {repeat(0, 1, 1.5), repeat(1, 10, 1.5),
                                            repeat(2, 3, 1.5)};
  const Json jacobi = speed_figures(repeats, "jacobi", "ar");
  EXPECT_NEAR(jacobi.at("speed_up"), 1.5, 1e-12);
  EXPECT_NEAR(jacobi.at("speed_up_low"), 1.5, 1e-9);
  EXPECT_NEAR(jacobi.at("speed_up_high"), 1.5, 1e-9);
  EXPECT_LT(jacobi.at("tokens_per_second_low"), jacobi.at("tokens_per_second"));
  EXPECT_GT(jacobi.at("tokens_per_second_high"), 2 * jacobi.at("tokens_per_second").get<double>());
  EXPECT_NEAR(jacobi.at("speed_up_with_prefill"), 1.25 / (1 / 1.5 + 0.25), 1e-12);
  EXPECT_EQ(jacobi.at("batch_prompts"), 1);
  EXPECT_EQ(jacobi.at("problems"), 4);
  EXPECT_EQ(jacobi.at("repeats"), 3);
  EXPECT_EQ(jacobi.at("ranks"), 2);
  EXPECT_EQ(jacobi.at("threads"), 3);
  EXPECT_TRUE(jacobi.at("remark").is_null());
}

TEST(SpeedFigures, TokensPerSecondAreOfOneRankWithoutTheFirstToken) {
  const std::vector<SpeedRepeat> repeats = {repeat(0, 4, 1), repeat(1, 4, 1)};
  const Json ar = speed_figures(repeats, "ar", "ar");
  EXPECT_NEAR(ar.at("tokens_per_second"), 100.0 / 4, 1e-12);
  EXPECT_NEAR(ar.at("tokens_per_second_with_prefill"), 108.0 / 5, 1e-12);
  EXPECT_TRUE(ar.at("speed_up").is_null()) << "nothing is compared with itself";
}

TEST(SpeedFigures, WhatCannotBeSaidIsNull) {
  const std::vector<SpeedRepeat> one = {repeat(0, 4, 2)};
  EXPECT_TRUE(speed_figures(one, "jacobi", "ar").at("speed_up").is_null()) << "no repeats";
  const std::vector<SpeedRepeat> two = {repeat(0, 4, 2), repeat(1, 4, 2)};
  EXPECT_TRUE(speed_figures(two, "jacobi", "absent").at("speed_up").is_null());
  EXPECT_TRUE(speed_figures(two, "absent", "ar").at("tokens_per_second").is_null());
  std::vector<SpeedRepeat> empty = two;
  for (SpeedRepeat& each : empty) {
    each.passes[0].tokens = each.passes[0].sequences;
    each.passes[0].decode_seconds = 0;
  }
  EXPECT_TRUE(speed_figures(empty, "jacobi", "ar").at("speed_up").is_null());
  EXPECT_THROW((void)speed_figures({}, "jacobi", "ar"), InternalError);
}

TEST(LoadRemark, NamesABusyMachineAndAnUnsteadyClock) {
  std::vector<SpeedRepeat> repeats = {repeat(0, 4, 2), repeat(1, 4, 2)};
  EXPECT_FALSE(load_remark(repeats).has_value());
  repeats[1].load.load_per_core = 3.14;
  EXPECT_EQ(load_remark(repeats), "load average of 3.1 per core");
  repeats[0].load.slowest_megahertz = 1200;
  EXPECT_EQ(load_remark(repeats), "load average of 3.1 per core, clock between 1200 and 2000 MHz");
  for (SpeedRepeat& each : repeats) {
    each.load = {};
  }
  EXPECT_FALSE(load_remark(repeats).has_value()) << "a machine that says nothing";
}

TEST(SpeedFile, LinesReadBackAndGoOnAfterACrash) {
  const TemporaryDirectory directory;
  const SpeedFile file(directory / "gsm8k.speed");
  EXPECT_THAT(file.read("s", "here", 1, 3), ElementsAre());
  file.append(repeat(0, 1, 1.5));
  file.append(repeat(1, 2, 1.5));
  file.append(repeat(1, 7, 1.5));        // a duplicate, which no call writes
  write_text(directory / "gsm8k.speed",  // a kill in the middle of a write
             read_text(directory / "gsm8k.speed") + "{\"settings\": \"s");
  EXPECT_THAT(file.read("s", "here", 1, 3), ElementsAre(repeat(0, 1, 1.5), repeat(1, 2, 1.5)));
  file.append(repeat(2, 3, 1.5));
  EXPECT_THAT(file.read("s", "here", 1, 3),
              ElementsAre(repeat(0, 1, 1.5), repeat(1, 2, 1.5), repeat(2, 3, 1.5)));
}

TEST(SpeedFile, OtherSettingsAndPlacesDoNotMix) {
  const TemporaryDirectory directory;
  const SpeedFile file(directory / "gsm8k.speed");
  SpeedRepeat other = repeat(0, 9, 1);
  other.settings = "t";
  file.append(other);
  SpeedRepeat there = repeat(0, 5, 2);
  there.place = "there";
  file.append(there);
  file.append(repeat(0, 1, 1.5));
  EXPECT_THAT(file.read("s", "here", 1, 2), ElementsAre(repeat(0, 1, 1.5)));
  EXPECT_THAT(file.read("u", "here", 1, 2), ElementsAre());
  SpeedRepeat second = there;
  second.repeat = 1;
  file.append(second);
  EXPECT_THAT(file.read("s", "here", 1, 2), ElementsAre(there, second))
      << "a measurement that is complete is not made again elsewhere";
  file.restart({repeat(0, 1, 1.5)});
  EXPECT_THAT(file.read("s", "here", 1, 2), ElementsAre(repeat(0, 1, 1.5)));
}

TEST(SpeedFile, RepeatsOfALongerMeasurementCompleteNoShorterOne) {
  const TemporaryDirectory directory;
  const SpeedFile file(directory / "gsm8k.speed");
  for (const std::int32_t number : {1, 2, 3}) {  // of four; the first one's line is lost
    SpeedRepeat there = repeat(number, 5, 2);
    there.place = "there";
    file.append(there);
  }
  file.append(repeat(0, 1, 1.5));
  file.append(repeat(1, 1, 1.5));
  EXPECT_THAT(file.read("s", "here", 1, 2), ElementsAre(repeat(0, 1, 1.5), repeat(1, 1, 1.5)));
}

TEST(SpeedFile, WhatIsNoRepeatIsRefusedByLine) {
  const TemporaryDirectory directory;
  const auto path = directory / "gsm8k.speed";
  const std::string good = to_line(repeat(0, 1, 1.5)) + "\n";
  for (const std::string& bad : {std::string("\n"), std::string("{}\n"), std::string("[1]\n"),
                                 std::string("\x01\xff\n"), good.substr(0, good.size() / 2) + "\n",
                                 std::string(R"({"settings": 3, "place": "here"})") + "\n"}) {
    write_text(path, good + bad);
    EXPECT_THAT(
        test::message_of<DataError>([&] { return SpeedFile(path).read("s", "here", 1, 2); }),
        HasSubstr("gsm8k.speed:2: not a measured speed"))
        << "accepted: " << bad;
  }
}

TEST(SpeedBatches, AreOneAndTheEvaluations) {
  EvaluateConfig config;
  config.speed_problems = 8;
  config.batch_prompts = 32;
  EXPECT_THAT(speed_batches(config, 100), ElementsAre(SpeedBatch{1, 8}, SpeedBatch{32, 32}));
  EXPECT_THAT(speed_batches(config, 20), ElementsAre(SpeedBatch{1, 8}, SpeedBatch{20, 20}));
  EXPECT_THAT(speed_batches(config, 1), ElementsAre(SpeedBatch{1, 1}));
  config.batch_prompts = 4;
  EXPECT_THAT(speed_batches(config, 100), ElementsAre(SpeedBatch{1, 8}, SpeedBatch{4, 8}));
  config.batch_prompts = 1;
  EXPECT_THAT(speed_batches(config, 100), ElementsAre(SpeedBatch{1, 8}));
  config.speed_problems = 0;
  EXPECT_THAT(speed_batches(config, 100), ElementsAre());
}

}  // namespace
}  // namespace jforge
