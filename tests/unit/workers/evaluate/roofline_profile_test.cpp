#include "workers/evaluate/roofline_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "runtime/error.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A pass of M rows takes M simulated milliseconds plus `slow` of that pass.
class FakeModel final : public DecodeModel {
 public:
  [[nodiscard]] std::int32_t num_slots() const override { return 2; }
  [[nodiscard]] std::int32_t slot_capacity() const override { return 64; }
  [[nodiscard]] std::int32_t branch_rows() const override { return 0; }
  void keep_branches(std::span<const CacheCopy> rows) override { EXPECT_TRUE(rows.empty()); }
  [[nodiscard]] bool reserve(std::int32_t /*slot*/, std::int64_t /*positions*/,
                             std::int64_t /*branch_rows*/) override {
    return true;
  }
  void release(std::int32_t /*slot*/) override {}
  void predict(std::span<const DecodeRow> rows, std::span<TokenId> predictions) override {
    const auto wanted = std::ranges::count_if(rows, &DecodeRow::wants_output);
    EXPECT_EQ(static_cast<std::size_t>(wanted), predictions.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].place.slot, 0);
      EXPECT_EQ(rows[i].place.position, rows[0].place.position + static_cast<std::int32_t>(i));
      EXPECT_GE(rows[i].token, 0);
      EXPECT_LT(rows[i].token, 100);
    }
    firsts.push_back(rows[0].place.position);
    passes.push_back(static_cast<std::int32_t>(rows.size()));
    now += 1e-3 * static_cast<double>(rows.size());
    if (slow) {
      now += slow(passes.size() - 1);
    }
  }
  [[nodiscard]] SecondsClock clock() const {
    return [this] { return now; };
  }

  std::vector<std::int32_t> passes;
  std::vector<std::int32_t> firsts;
  double now = 100;
  std::function<double(std::size_t)> slow;
};

RooflineSettings small() {
  return {.max_rows = 8, .context_tokens = 20, .repeats = 3, .warm_up = 1};
}

TEST(RooflineProfile, RowsAscendByDoublingUpToTheLargest) {
  EXPECT_THAT(small().row_counts(), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(RooflineSettings{.max_rows = 12}.row_counts(), ElementsAre(1, 2, 4, 8, 12));
  EXPECT_THAT(RooflineSettings{.max_rows = 1}.row_counts(), ElementsAre(1));
}

TEST(RooflineProfile, MeasuresEveryNumberInTurnBehindTheContext) {
  FakeModel model;
  const auto points = profile_roofline(model, 100, small(), {}, model.clock());
  ASSERT_EQ(model.passes.size(), 1U + 4 * 4);
  EXPECT_EQ(model.passes[0], 20);
  EXPECT_EQ(model.firsts[0], 0);
  for (std::size_t i = 1; i < model.passes.size(); ++i) {
    EXPECT_EQ(model.passes[i], 1 << ((i - 1) % 4));
    EXPECT_EQ(model.firsts[i], 20);
  }
  ASSERT_EQ(points.size(), 4U);
  for (const RooflinePoint& point : points) {
    EXPECT_NEAR(point.seconds, 1e-3 * point.rows, 1e-9);
    EXPECT_NEAR(point.seconds_low, point.seconds, 1e-9);
    EXPECT_NEAR(point.seconds_high, point.seconds, 1e-9);
  }
}

TEST(RooflineProfile, MedianAndQuartilesWithoutTheWarmUp) {
  FakeModel model;
  RooflineSettings settings{.max_rows = 1, .context_tokens = 0, .repeats = 5, .warm_up = 2};
  // After two warm-up passes.
  const std::vector<double> extra = {3600, 3600, 4, 0, 2, 1, 3};
  model.slow = [&](std::size_t pass) { return extra.at(pass); };
  const auto points = profile_roofline(model, 100, settings, {}, model.clock());
  ASSERT_EQ(model.passes.size(), 7U);
  ASSERT_EQ(points.size(), 1U);
  EXPECT_NEAR(points[0].seconds, 2.001, 1e-9);
  EXPECT_NEAR(points[0].seconds_low, 1.001, 1e-9);
  EXPECT_NEAR(points[0].seconds_high, 3.001, 1e-9);
}

TEST(RooflineProfile, AStopEndsItWithoutPoints) {
  FakeModel model;
  int passes = 0;
  EXPECT_THAT(profile_roofline(
                  model, 100, small(), [&] { return ++passes == 6; }, model.clock()),
              IsEmpty());
  EXPECT_EQ(passes, 6);
  EXPECT_EQ(model.passes.size(), 7U);
}

TEST(RooflineProfile, WhatTheSlotCannotHoldIsRefused) {
  FakeModel model;
  RooflineSettings settings = small();
  settings.context_tokens = 56;
  EXPECT_EQ(profile_roofline(model, 100, settings).size(), 4U);
  settings.context_tokens = 57;
  EXPECT_THAT(test::message_of<DataError>([&] { return profile_roofline(model, 100, settings); }),
              HasSubstr("65 positions"));
}

TEST(RooflineProfile, SettingsAreChecked) {
  for (const auto& [name, change] :
       std::vector<std::pair<std::string, std::function<void(RooflineSettings&)>>>{
           {"max_rows", [](auto& s) { s.max_rows = 0; }},
           {"context_tokens", [](auto& s) { s.context_tokens = -1; }},
           {"repeats", [](auto& s) { s.repeats = 0; }},
           {"warm_up", [](auto& s) { s.warm_up = -1; }}}) {
    RooflineSettings settings = small();
    change(settings);
    EXPECT_THAT(test::message_of<ConfigError>([&] { settings.validate(); }), HasSubstr(name))
        << name << " accepted";
  }
}

TEST(RooflineProfile, JsonIsWhatTheReportReads) {
  const std::vector<RooflinePoint> points = {{4, 0.5, 0.25, 0.75}};
  EXPECT_EQ(to_json(points).dump(),
            R"([{"rows":4,"seconds":0.5,"seconds_low":0.25,"seconds_high":0.75}])");
  EXPECT_EQ(to_json({}).dump(), "[]");
}

}  // namespace
}  // namespace jforge
