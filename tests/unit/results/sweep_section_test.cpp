#include "results/report/sweep_section.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>

#include "runtime/error.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;

ReportJson point(const ReportJson& settings, double tpf, const ReportJson& speed) {
  return {{"accuracy", 0.5},
          {"tpf", tpf},
          {"tokens_per_second", speed},
          {"speed_up", speed.is_number() ? ReportJson(speed.get<double>() / 50) : ReportJson()},
          {"n", 100},
          {"ranks", 2},
          {"batch_prompts", 8},
          {"forwards", 7},
          {"settings_hash", "00"},
          {"settings", settings}};
}

/// Speed has its peak at block size 32 whatever the verification size, TPF grows with both.
ReportJson sweep_of(const std::vector<std::string>& keys) {
  ReportJson sweep = {{"model", "final"},
                      {"task", "gsm8k"},
                      {"method", "jacobi"},
                      {"keys", keys},
                      {"baseline",
                       {{"accuracy", 0.5},
                        {"tpf", 1},
                        {"tokens_per_second", 50},
                        {"ranks", 2},
                        {"batch_prompts", 8}}},
                      {"points", ReportJson::array()}};
  const bool two = keys.size() > 1;
  for (const int block : {64, 8, 16, 32, 128}) {  // in no order
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

ReportJson roofline(double knee) {
  auto rows = ReportJson::array();
  for (int m = 1; m <= 1024; m *= 2) {
    const double seconds = 0.01 * (1 + std::max(0.0, m - knee) / knee);
    rows.push_back({{"rows", m},
                    {"seconds", seconds},
                    {"seconds_low", 0.9 * seconds},
                    {"seconds_high", 1.1 * seconds}});
  }
  return rows;
}

class SweepSection : public ::testing::Test {
 protected:
  void write(const ReportJson& sweep) {
    report_ = ReportWriter{directory_.path()};
    std::filesystem::create_directories(directory_ / "figures");
    write_sweep_section(report_, sweep);
  }
  std::string figure(const std::string& name) {
    std::ifstream file(directory_ / ("figures/" + name + ".svg"));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  TemporaryDirectory directory_;
  ReportWriter report_;
};

TEST_F(SweepSection, OneKeyIsATableACurveAndTheBestSettings) {
  write(sweep_of({"block_size"}));
  EXPECT_THAT(report_.text,
              AllOf(HasSubstr("## Decoding settings"), HasSubstr("### gsm8k jacobi, final"),
                    HasSubstr("Fastest measured: block_size = 32 with 101 tokens/s"),
                    HasSubstr("Fastest by the fitted surface: block_size = 32"),
                    HasSubstr("polynomial of degree 2"), HasSubstr("(figures/tpf_block_size.svg)"),
                    HasSubstr("(figures/sweep_speed_gsm8k_jacobi.svg)")));
  // Ascending, the baseline first, the fastest marked, speed-ups over the baseline.
  const std::size_t ar = report_.text.find("| AR ");
  const std::size_t eight = report_.text.find("| 8  ");
  const std::size_t large = report_.text.find("| 128 ");
  EXPECT_LT(ar, eight);
  EXPECT_LT(eight, large);
  EXPECT_THAT(report_.text.substr(report_.text.find("| 32 "), 120),
              AllOf(HasSubstr("2.02×"), HasSubstr("fastest")));
  EXPECT_THAT(figure("sweep_speed_gsm8k_jacobi"),
              AllOf(HasSubstr("★ fastest measured"), HasSubstr(">AR<"), HasSubstr(">measured<")));
  EXPECT_THAT(figure("tpf_block_size"), HasSubstr("gsm8k jacobi"));
  EXPECT_THAT(report_.missing, Contains(HasSubstr("roofline")));
}

TEST_F(SweepSection, TwoKeysAreAContourAndALineForEachValueOfTheOther) {
  write(sweep_of({"block_size", "verification_size"}));
  const std::string contour = figure("sweep_speed_gsm8k_jacobi");
  EXPECT_THAT(contour, AllOf(HasSubstr(">block_size<"), HasSubstr(">verification_size<"),
                             HasSubstr("★ measured 104"), HasSubstr(">tokens/s<")));
  std::size_t dots = 0;
  for (std::size_t at = contour.find("<circle"); at != std::string::npos;
       at = contour.find("<circle", at + 1)) {
    ++dots;
  }
  EXPECT_EQ(dots, 15U);
  EXPECT_THAT(figure("tpf_block_size"), HasSubstr("gsm8k jacobi, verification_size = 4"));
}

TEST_F(SweepSection, SpeedsOfOtherRanksOrBatchesAreNamedAndLeftOut) {
  ReportJson sweep = sweep_of({"block_size"});
  // The fastest one, and another whose samples were made at several rank counts.
  for (auto& point : sweep["points"]) {
    if (point["settings"]["block_size"] == 32) {
      point["tokens_per_second"] = 1000;
      point["batch_prompts"] = 64;
      point["speed_up"] = nullptr;
    } else if (point["settings"]["block_size"] == 8) {
      point["ranks"] = nullptr;
      point["speed_up"] = nullptr;
    }
  }
  write(sweep);
  EXPECT_THAT(report_.text, AllOf(HasSubstr("Fastest measured: block_size = 16"),
                                  Not(HasSubstr("20.00×")), HasSubstr("| 1000 ")));
  EXPECT_THAT(report_.missing, AllOf(Contains(HasSubstr("block_size = 32: measured with other")),
                                     Contains(HasSubstr("block_size = 8: measured with other"))));
  EXPECT_THAT(report_.missing, Not(Contains(HasSubstr("block_size = 16: measured"))));
  EXPECT_THAT(figure("sweep_speed_gsm8k_jacobi"), HasSubstr(">AR<"));
  sweep["baseline"]["ranks"] = 1;
  write(sweep);
  EXPECT_THAT(figure("sweep_speed_gsm8k_jacobi"), Not(HasSubstr(">AR<")));
}

TEST_F(SweepSection, TwoKeysOfWhichOneVariesAreACurve) {
  ReportJson sweep = sweep_of({"block_size"});
  // The constant one first: the curve must be over the other.
  sweep["keys"] = {"a_constant", "block_size"};
  for (auto& point : sweep["points"]) {
    point["settings"]["a_constant"] = 7;
  }
  write(sweep);
  EXPECT_THAT(report_.text, HasSubstr("(figures/sweep_speed_gsm8k_jacobi.svg)"));
  EXPECT_THAT(figure("sweep_speed_gsm8k_jacobi"),
              AllOf(HasSubstr(">block_size<"), HasSubstr("★ fastest measured"),
                    HasSubstr("polynomial of degree")));
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

TEST_F(SweepSection, RooflineHasItsKnee) {
  ReportJson sweep = sweep_of({"block_size"});
  sweep["roofline"] = roofline(100);
  write(sweep);
  EXPECT_THAT(report_.text, AllOf(HasSubstr("## Roofline"), HasSubstr("Knee at 100 tokens"),
                                  HasSubstr("below it a forward pass takes 10 ms"),
                                  HasSubstr("10 ms more for each further 100 tokens")));
  EXPECT_THAT(figure("roofline"), AllOf(HasSubstr("knee at 100"), HasSubstr("<path")));
  EXPECT_THAT(report_.missing, Not(Contains(HasSubstr("roofline"))));
  sweep["roofline"] = roofline(1e6);
  write(sweep);
  EXPECT_THAT(report_.text, HasSubstr("No knee: a forward pass takes 10 ms"));
  EXPECT_THAT(figure("roofline"), Not(HasSubstr("knee at")));
}

TEST_F(SweepSection, WhatIsTooLittleIsSaid) {
  ReportJson sweep = sweep_of({"block_size"});
  sweep["points"] = ReportJson::array({sweep["points"][0]});
  sweep["roofline"] = ReportJson::array({roofline(100)[0]});
  write(sweep);
  EXPECT_THAT(report_.missing, AllOf(Contains(HasSubstr("at least 2 measured settings")),
                                     Contains(HasSubstr("one point is no curve"))));
  sweep["points"][0]["tokens_per_second"] = nullptr;
  write(sweep);
  EXPECT_THAT(report_.missing, Contains(HasSubstr("no setting has a measured speed")));
  EXPECT_THAT(report_.text, HasSubstr("| 64"));
  sweep["points"] = ReportJson::array();
  write(sweep);
  EXPECT_THAT(report_.missing, Contains(HasSubstr("holds no measured setting")));
}

TEST_F(SweepSection, ScatterIsNotPredictedFrom) {
  ReportJson sweep = sweep_of({"block_size"});
  for (std::size_t i = 0; i < 5; ++i) {
    sweep["points"][i]["tokens_per_second"] =
        sweep["points"][i]["settings"]["block_size"].get<int>() % 3 == 1 ? 900 : 100;
  }
  write(sweep);
  EXPECT_THAT(report_.text, AllOf(HasSubstr("Fastest measured"), HasSubstr("no surface"),
                                  Not(HasSubstr("by the fitted surface"))));
  EXPECT_THAT(report_.missing, Contains(HasSubstr("no polynomial predicts")));
  EXPECT_THAT(figure("sweep_speed_gsm8k_jacobi"),
              AllOf(HasSubstr("★ fastest measured"), Not(HasSubstr("predicted"))));
}

TEST_F(SweepSection, ABusyMachineIsCalledOut) {
  ReportJson sweep = sweep_of({"block_size"});
  sweep["roofline"] = roofline(100);
  write(sweep);
  EXPECT_THAT(report_.text, Not(HasSubstr("busy")));
  sweep["roofline"][3]["seconds_high"] = 1;
  write(sweep);
  EXPECT_THAT(report_.text, HasSubstr("Of 11 points 1 have quartiles"));
}

TEST_F(SweepSection, WithoutABaselineThereIsNoSpeedUp) {
  ReportJson sweep = sweep_of({"block_size"});
  sweep["baseline"] = nullptr;
  for (auto& point : sweep["points"]) {
    point.erase("speed_up");
  }
  write(sweep);
  EXPECT_THAT(report_.text, AllOf(Not(HasSubstr("| AR ")), Not(HasSubstr("×"))));
  EXPECT_THAT(figure("sweep_speed_gsm8k_jacobi"), Not(HasSubstr(">AR<")));
}

TEST_F(SweepSection, GarbledSweepsAreRefused) {
  const auto refused = [&](const std::function<void(ReportJson&)>& damage) {
    ReportJson sweep = sweep_of({"block_size"});
    sweep["roofline"] = roofline(100);
    damage(sweep);
    try {
      write(sweep);
      ADD_FAILURE() << "accepted " << sweep.dump().substr(0, 200);
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("sweep.json"));
    }
  };
  refused([](ReportJson& s) { s.erase("keys"); });
  refused([](ReportJson& s) { s["keys"] = {1}; });
  refused([](ReportJson& s) { s["points"] = 3; });
  refused([](ReportJson& s) { s["points"][1].erase("settings"); });
  refused([](ReportJson& s) { s["points"][1]["settings"]["block_size"] = "large"; });
  refused([](ReportJson& s) { s["points"][1]["settings"].erase("block_size"); });
  refused([](ReportJson& s) { s["further_tasks"] = 1; });
  refused([](ReportJson& s) { s["further_tasks"] = {1}; });
  refused([](ReportJson& s) { s["roofline"][2]["seconds"] = 0; });
  refused([](ReportJson& s) { s["roofline"][2].erase("rows"); });
  refused([](ReportJson& s) { s["roofline"][2] = 1; });
}

}  // namespace
}  // namespace jforge
