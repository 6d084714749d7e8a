#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <regex>

#include "results/report/report_sections.h"
#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

/// At batch 1; the baseline has 50 tokens/s and no speed-up.
ReportJson speed_of(double speed, bool baseline = false) {
  const auto of_baseline = [&](double value) {
    return baseline ? ReportJson() : ReportJson(value / 50);
  };
  return ReportJson::array({{{"batch_prompts", 1},
                             {"tokens_per_second", speed},
                             {"tokens_per_second_low", speed - 0.25},
                             {"tokens_per_second_high", speed + 0.25},
                             {"speed_up", of_baseline(speed)},
                             {"speed_up_low", of_baseline(speed - 0.25)},
                             {"speed_up_high", of_baseline(speed + 0.25)},
                             {"remark", nullptr}}});
}

ReportJson point(const ReportJson& settings, double tpf, double speed) {
  return {{"accuracy", 0.5},
          {"tpf", tpf},
          {"speed", speed_of(speed)},
          {"accuracy_low", 0.4},
          {"accuracy_high", 0.6},
          {"tpf_low", tpf - 0.5},
          {"tpf_high", tpf + 0.25},
          {"n", 100},
          {"forwards", 7},
          {"disagreements_with_ar", 0},
          {"settings_hash", "00"},
          {"settings", settings}};
}

/// Speed peaks at block size 32; TPF grows with both.
ReportJson sweep_of(const std::vector<std::string>& keys) {
  ReportJson sweep = {{"model", "final"},
                      {"task", "gsm8k"},
                      {"method", "jacobi"},
                      {"keys", keys},
                      {"baseline", {{"accuracy", 0.5}, {"tpf", 1}, {"speed", speed_of(50, true)}}},
                      {"points", ReportJson::array()}};
  const bool two = keys.size() > 1;
  for (const int block : {64, 8, 16, 32, 128}) {
    for (const int verify : two ? std::vector<int>{1, 2, 4} : std::vector<int>{1}) {
      const double off = std::log2(block) - 5;
      ReportJson settings = {{"block_size", block}};
      if (two) {
        settings["verification_size"] = verify;
      }
      sweep["points"].push_back(
          point(settings, std::log2(block) + verify, 100 - 10 * off * off + verify));
    }
  }
  return sweep;
}

class SweepSection : public ::testing::Test {
 protected:
  void write(const ReportJson& sweep) {
    report_ = ReportWriter{directory_.path()};
    std::filesystem::create_directories(directory_ / "figures");
    tables_ = write_sweep_section(report_, sweep);
  }
  std::string figure(const std::string& name) {
    std::ifstream file(directory_ / ("figures/" + name + ".svg"));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  TemporaryDirectory directory_;
  ReportWriter report_;
  std::string tables_;
};

TEST_F(SweepSection, SampledAnswersAreSaidToBe) {
  ReportJson sweep = sweep_of({"block_size"});
  for (ReportJson& one : sweep["points"]) {
    one["temperature"] = 0.5;
    one["block_size"] = one["settings"]["block_size"];
  }
  write(sweep);
  EXPECT_THAT(tables_, HasSubstr("### gsm8k jacobi, final, 100 problems, temperature 0.5\n"));
}

TEST_F(SweepSection, TheBaselineHasATemperatureOfItsOwn) {
  ReportJson sweep = sweep_of({"temperature"});
  for (ReportJson& one : sweep["points"]) {
    one["settings"] = {{"temperature", one["settings"]["block_size"]}};
  }
  sweep["baseline"]["temperature"] = 0.75;
  write(sweep);
  EXPECT_THAT(tables_, HasSubstr("| AR, 0.75 "));
}

TEST_F(SweepSection, OneKeyIsATableSortedBySpeedAndACurve) {
  write(sweep_of({"block_size"}));
  EXPECT_THAT(
      report_.text,
      AllOf(HasSubstr("## Decoding settings"), HasSubstr("### gsm8k jacobi, final, 100 problems\n"),
            HasSubstr("Fastest by the clock at batch 1: block_size = 32, 2.02× AR (2.02–2.02)"),
            HasSubstr("(figures/tpf_block_size.svg)"), HasSubstr(tables_),
            HasSubstr("(figures/sweep_speed_gsm8k_jacobi.svg)")));
  std::size_t last = 0;
  for (const char* row :
       {"\n| block_size | tokens/s, batch 1 | over AR, batch 1  | TPF              | accuracy, %",
        "\n| 32         | 101 (101–101)     | 2.02× (2.02–2.02) | 6.00 (5.50–6.25) | 50.0 (40.0–",
        "\n| 16 ", "\n| 64 ", "\n| 8  ", "\n| 128 ", "\n| AR "}) {
    const std::size_t at = tables_.find(row);
    EXPECT_TRUE(at != std::string::npos && at >= last) << row << "\n" << tables_;
    last = at;
  }
  EXPECT_THAT(tables_, HasSubstr("(40.0–60.0) | 0    |\n| 16 "));
  EXPECT_THAT(figure("sweep_speed_gsm8k_jacobi"),
              AllOf(HasSubstr(">gsm8k jacobi<"), HasSubstr(">AR<"), HasSubstr("#222222")));
  EXPECT_THAT(figure("tpf_block_size"), AllOf(HasSubstr("gsm8k jacobi"), HasSubstr("#222222")));
}

TEST_F(SweepSection, TheFastestMayBeAr) {
  ReportJson sweep = sweep_of({"block_size"});
  for (auto& point : sweep["points"]) {
    for (const char* key : {"speed_up", "speed_up_low", "speed_up_high"}) {
      point["speed"][0][key] = point["speed"][0][key].get<double>() / 10;
    }
  }
  write(sweep);
  EXPECT_THAT(report_.text, HasSubstr("Fastest by the clock at batch 1: AR; the next is block_size "
                                      "= 32, 0.20× AR (0.20–0.20)."));
  for (auto& point : sweep["points"]) {  // Or the best is uncertain.
    if (point["settings"]["block_size"] == 32) {
      point["speed"][0]["speed_up_high"] = 1.5;
    }
  }
  write(sweep);
  EXPECT_THAT(report_.text, HasSubstr("AR and block_size = 32 cannot be told apart"));
}

TEST_F(SweepSection, EveryBatchHasItsFastestAndARemark) {
  ReportJson sweep = sweep_of({"block_size"});
  const auto add = [](ReportJson& figures, const ReportJson& speed) {
    figures["speed"].push_back(speed[0]);
    figures["speed"][1]["batch_prompts"] = 32;
  };
  add(sweep["baseline"], speed_of(50, true));
  for (auto& point : sweep["points"]) {
    add(point, speed_of(1000.0 / point["settings"]["block_size"].get<double>()));
  }
  sweep["points"][0]["speed"][1]["remark"] = "load average of 9.0 per core";
  write(sweep);
  EXPECT_THAT(report_.text, AllOf(HasSubstr("at batch 1: block_size = 32, 2.02×"),
                                  HasSubstr("at batch 32: block_size = 8, 2.50×"),
                                  HasSubstr("**Speeds at batch 32 mean little: load average of "
                                            "9.0 per core.**")));
}

TEST_F(SweepSection, TwoKeysAreALineForEachValueOfTheOther) {
  write(sweep_of({"block_size", "verification_size"}));
  for (const char* name : {"sweep_speed_gsm8k_jacobi", "tpf_block_size"}) {
    const std::string svg = figure(name);
    EXPECT_THAT(
        svg, AllOf(HasSubstr(">block size<"), HasSubstr(">gsm8k jacobi, verification_size = 4<")));
    const std::regex circle("<circle");
    EXPECT_EQ(std::distance(std::sregex_iterator(svg.begin(), svg.end(), circle), {}), 15);
  }
}

TEST_F(SweepSection, OfManyLinesTheHighestAreShown) {
  ReportJson sweep = sweep_of({"block_size", "verification_size"});
  const ReportJson first = sweep["points"][0];
  for (int i = 10; i < 16; ++i) {
    sweep["points"].push_back(first);
    sweep["points"].back()["settings"]["verification_size"] = i;
    sweep["points"].back()["speed"][0]["tokens_per_second"] = 100 + i;
  }
  write(sweep);
  EXPECT_THAT(report_.text, HasSubstr("The figure shows the highest 7 of 9 settings."));
  EXPECT_THAT(figure("sweep_speed_gsm8k_jacobi"),
              AllOf(HasSubstr("_size = 4<"), HasSubstr("_size = 15<"), Not(HasSubstr("_size = 2<")),
                    HasSubstr(">AR<")));
}

TEST_F(SweepSection, SpeedsWithoutRepeatsAreNotShown) {
  ReportJson sweep = sweep_of({"block_size"});
  for (auto& point : sweep["points"]) {
    point.erase("speed");
    point["tokens_per_second"] = 1000;  // measured along with accuracy
  }
  write(sweep);
  EXPECT_THAT(report_.text, AllOf(Not(HasSubstr("1000")), Not(HasSubstr("×"))));
  EXPECT_THAT(report_.missing, Contains(HasSubstr("no setting has a measured speed")));
}

TEST_F(SweepSection, TwoKeysOfWhichOneVariesAreACurve) {
  ReportJson sweep = sweep_of({"block_size"});
  sweep["keys"] = {"a_constant", "block_size"};
  for (auto& point : sweep["points"]) {
    point["settings"]["a_constant"] = 7;
  }
  write(sweep);
  EXPECT_THAT(figure("sweep_speed_gsm8k_jacobi"), HasSubstr(">block size<"));
}

TEST_F(SweepSection, FurtherTasksHaveTheirOwnPartsAndShareAFigure) {
  ReportJson sweep = sweep_of({"block_size"});
  ReportJson other = sweep_of({"block_size"});
  other["task"] = "math:cot";
  sweep["further_tasks"] = ReportJson::array({other});
  write(sweep);
  EXPECT_THAT(report_.text, AllOf(HasSubstr("### gsm8k jacobi"), HasSubstr("### math:cot jacobi"),
                                  HasSubstr("(figures/sweep_speed_math_cot_jacobi.svg)")));
  EXPECT_THAT(figure("tpf_block_size"),
              AllOf(HasSubstr(">gsm8k jacobi<"), HasSubstr(">math:cot jacobi<")));
}

TEST_F(SweepSection, WhatIsTooLittleIsSaid) {
  ReportJson sweep = sweep_of({"block_size"});
  sweep["points"] = ReportJson::array({sweep["points"][0]});
  sweep["points"][0]["speed"][0]["tokens_per_second"] = nullptr;
  write(sweep);
  EXPECT_THAT(report_.missing, Contains(HasSubstr("no setting has a measured speed")));
  EXPECT_THAT(report_.text, HasSubstr("| 64"));
  sweep["points"] = ReportJson::array();
  write(sweep);
  EXPECT_THAT(report_.missing, Contains(HasSubstr("holds no measured setting")));
}

TEST_F(SweepSection, WithoutABaselineThereIsNoSpeedUp) {
  ReportJson sweep = sweep_of({"block_size"});
  sweep["baseline"] = nullptr;
  for (auto& point : sweep["points"]) {
    for (const char* key : {"speed_up", "speed_up_low", "speed_up_high"}) {
      point["speed"][0][key] = nullptr;
    }
  }
  write(sweep);
  EXPECT_THAT(report_.text, AllOf(Not(HasSubstr("| AR ")), Not(HasSubstr("×")),
                                  HasSubstr("at batch 1: block_size = 32, 101 tokens/s")));
  EXPECT_THAT(figure("sweep_speed_gsm8k_jacobi"), Not(HasSubstr(">AR<")));
}

TEST_F(SweepSection, GarbledSweepsAreRefused) {
  const auto refused = [&](const std::function<void(ReportJson&)>& damage) {
    ReportJson sweep = sweep_of({"block_size"});
    damage(sweep);
    EXPECT_THAT(test::message_of<DataError>([&] { write(sweep); }), HasSubstr("sweep.json"))
        << "accepted " << sweep.dump().substr(0, 200);
  };
  refused([](ReportJson& s) { s.erase("keys"); });
  refused([](ReportJson& s) { s["keys"] = {1}; });
  refused([](ReportJson& s) { s["points"] = 3; });
  refused([](ReportJson& s) { s["points"][1].erase("settings"); });
  refused([](ReportJson& s) { s["points"][1]["settings"]["block_size"] = "large"; });
  refused([](ReportJson& s) { s["points"][1]["settings"].erase("block_size"); });
  refused([](ReportJson& s) { s["further_tasks"] = 1; });
  refused([](ReportJson& s) { s["further_tasks"] = {1}; });
}

}  // namespace
}  // namespace jforge
