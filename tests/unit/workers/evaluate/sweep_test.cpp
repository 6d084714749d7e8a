#include "workers/evaluate/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "runtime/error.h"
#include "runtime/text_seal.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/workers/evaluate/evaluation_fixture.h"
#include "workers/evaluate/evaluation_summary.h"

namespace jforge {
namespace {

using test::read_text;
using test::TemporaryDirectory;
using test::write_text;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

SweepConfig two_blocks() {
  SweepConfig sweep;
  sweep.axes.at("block_size").values = {std::int64_t{4}, std::int64_t{16}};
  return sweep;
}

void expect_sweep_refused(const std::function<void(SweepConfig&)>& damage,
                          const std::string& part) {
  SweepConfig sweep = two_blocks();
  damage(sweep);
  EXPECT_THAT(test::message_of<ConfigError>([&] { sweep.validate(); }), HasSubstr(part));
}

TEST(Sweep, EveryBadValueIsRefusedByItsKey) {
  EXPECT_NO_THROW(two_blocks().validate());
  expect_sweep_refused([](auto& sweep) { sweep.method = "magic"; }, "magic");
  expect_sweep_refused([](auto& sweep) { sweep.method = "ar"; }, "sweep.block_size");
  expect_sweep_refused(
      [](auto& sweep) {
        sweep.axes.at("top_p").values = {0.5, 1.5};
      },
      "sweep.top_p");
  expect_sweep_refused([](auto& sweep) { sweep.axes.at("block_size").values.clear(); },
                       "block_size = [4, 8]");
  expect_sweep_refused([](auto& sweep) { sweep.axes.at("block_size").values[1] = std::int64_t{0}; },
                       "sweep.block_size");
  expect_sweep_refused([](auto& sweep) { sweep.axes.at("block_size").values[1] = std::int64_t{4}; },
                       "named twice");
}

TEST(Sweep, PointsAreTheProductOfTheAxes) {
  SweepConfig sweep = two_blocks();
  sweep.axes["ratio"] = {0.5, {0.25, 0.75}};  // A second axis: points() does not depend on methods.
  const std::vector<DecodingSettings> points = sweep.points();
  ASSERT_EQ(points.size(), 4U);
  std::vector<std::string> labels;
  for (const DecodingSettings& point : points) {
    labels.push_back(variant_label("mr", point));
  }
  EXPECT_THAT(labels, ElementsAre("mr.block_size=4.ratio=0.25", "mr.block_size=4.ratio=0.75",
                                  "mr.block_size=16.ratio=0.25", "mr.block_size=16.ratio=0.75"));
  EXPECT_THAT(sweep.keys(), ElementsAre("block_size", "ratio"));
}

TEST(Sweep, MethodsAreTheBaselineAndThePoints) {
  SweepConfig sweep = two_blocks();
  const auto methods = sweep_methods(sweep, {}, 42);
  ASSERT_EQ(methods.size(), 3U);
  EXPECT_EQ(methods[0].label, "ar");
  EXPECT_EQ(methods[1].label, "jacobi.block_size=4");
  EXPECT_EQ(methods[1].name, "jacobi");
  EXPECT_EQ(methods[1].settings.at("block_size"), 4);
  EXPECT_EQ(methods[2].settings.at("block_size"), 16);
}

TEST(Sweep, TemperaturesAreAnAxisOfEveryMethod) {
  SweepConfig sweep;
  sweep.method = "ar";
  sweep.axes.at("temperature").values = {0.5, 1.0};
  const auto methods = sweep_methods(sweep, {{"temperature", 1.0}}, 42);
  ASSERT_EQ(methods.size(), 3U);
  EXPECT_EQ(methods[1].label, "ar.temperature=0.5");
  // Only the same sampling can be compared by token.
  EXPECT_FALSE(methods[1].sampling.chooses_as(methods[0].sampling));
  EXPECT_TRUE(methods[2].sampling.chooses_as(methods[0].sampling));
}

TEST(Sweep, TheFileHoldsThePointsInOrder) {
  const TemporaryDirectory directory;
  SweepConfig sweep = two_blocks();
  {
    EvaluationSummary summary(directory.path());
    for (const std::string task : {"gsm8k", "gsm8k:cot_boxed"}) {
      summary.set("m", task, "jacobi.block_size=16", {{"tpf", 3.0}, {"settings", "b"}});
      summary.set("m", task, "jacobi.block_size=4", {{"tpf", 2.0}, {"settings", "a"}});
      summary.set("m", task, "ar", {{"tpf", 1.0}, {"settings", "c"}});
    }
    summary.publish();
  }
  const Json written = write_sweep(sweep, {"gsm8k", "gsm8k:cot_boxed"}, "m", directory.path());
  verify_sealed(directory / "sweep.json");
  Json json = Json::parse(read_text(directory / "sweep.json"));
  json.erase("checksum");
  EXPECT_EQ(json, written);
  EXPECT_EQ(json.at("model"), "m");
  EXPECT_EQ(json.at("task"), "gsm8k");
  EXPECT_EQ(json.at("method"), "jacobi");
  EXPECT_EQ(json.at("keys"), Json({"block_size"}));
  EXPECT_EQ(json.at("baseline").at("tpf"), 1.0);
  ASSERT_EQ(json.at("points").size(), 2U);
  EXPECT_EQ(json.at("points")[0].at("settings"), Json({{"block_size", 4}}));
  EXPECT_EQ(json.at("points")[0].at("tpf"), 2.0);
  EXPECT_EQ(json.at("points")[1].at("settings").at("block_size"), 16);
  ASSERT_EQ(json.at("further_tasks").size(), 1U);
  EXPECT_EQ(json.at("further_tasks")[0].at("task"), "gsm8k:cot_boxed");
  EXPECT_THROW((void)write_sweep(sweep, {"gsm8k"}, "other", directory.path()), InternalError);
}

}  // namespace
}  // namespace jforge
