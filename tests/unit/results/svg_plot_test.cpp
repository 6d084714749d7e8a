#include "results/report/svg_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <vector>

namespace jforge {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Every opened element is closed, in order, and no number failed to print.
void expect_well_formed(const std::string& svg) {
  const std::regex tag("<(/?)([a-z]+)[^<>]*?(/?)>");
  std::vector<std::string> open;
  for (std::sregex_iterator match(svg.begin(), svg.end(), tag), end; match != end; ++match) {
    if ((*match)[1].length() > 0) {
      ASSERT_FALSE(open.empty()) << svg;
      EXPECT_EQ(open.back(), (*match)[2]);
      open.pop_back();
    } else if ((*match)[3].length() == 0) {
      open.push_back((*match)[2]);
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_TRUE(svg.starts_with("<svg xmlns="));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

/// Points of the polyline number `index`.
std::vector<std::pair<double, double>> points_of(const std::string& svg, std::size_t index) {
  std::size_t at = 0;
  for (std::size_t i = 0; i <= index; ++i) {
    at = svg.find("points=\"", at) + 8;
  }
  std::vector<std::pair<double, double>> points;
  const std::string list = svg.substr(at, svg.find('"', at) - at);
  const std::regex pair("([-0-9.]+),([-0-9.]+)");
  for (std::sregex_iterator match(list.begin(), list.end(), pair), end; match != end; ++match) {
    points.emplace_back(std::stod((*match)[1]), std::stod((*match)[2]));
  }
  return points;
}

TEST(NiceTicks, CoverTheRangeInRoundSteps) {
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {0, 1}, {0, 97}, {-3, 12}, {1e-6, 4e-6}, {1000, 1001}, {-5e8, 7e9}}) {
    const auto ticks = nice_ticks(low, high, 6);
    ASSERT_GE(ticks.size(), 3U) << low << " " << high;
    EXPECT_LE(ticks.size(), 8U);
    const double step = ticks[1] - ticks[0];
    EXPECT_GE(ticks.front(), low - 1e-6 * step);
    EXPECT_LE(ticks.back(), high + 1e-6 * step);
    EXPECT_GT(ticks.front() - step, low - step * 1.001);
    EXPECT_LT(ticks.front() - step, low);
    EXPECT_GT(ticks.back() + step, high);
    const double digit = step / std::pow(10.0, std::floor(std::log10(step) + 1e-9));
    EXPECT_TRUE(std::abs(digit - 1) < 1e-6 || std::abs(digit - 2) < 1e-6 ||
                std::abs(digit - 5) < 1e-6 || std::abs(digit - 10) < 1e-6)
        << step;
  }
}

TEST(NiceTicks, ZeroIsExact) {
  const auto ticks = nice_ticks(-0.3, 0.3, 6);
  EXPECT_NE(std::find(ticks.begin(), ticks.end(), 0.0), ticks.end());
}

TEST(LineChart, DrawsEverySeriesWithItsName) {
  const LineChart chart{
      "Loss", "step", "KL", false, {{"first", {0, 1, 2}, {3, 2, 1}}, {"second", {0, 2}, {1, 3}}}};
  const std::string svg = render_svg(chart);
  expect_well_formed(svg);
  EXPECT_EQ(count(svg, "<polyline"), 2U);
  for (const char* text : {"Loss", "step", "KL", "first", "second"}) {
    EXPECT_THAT(svg, HasSubstr(">" + std::string(text) + "<"));
  }
  const auto points = points_of(svg, 0);
  ASSERT_EQ(points.size(), 3U);
  EXPECT_LT(points[0].first, points[1].first);
  EXPECT_LT(points[1].first, points[2].first);
  // Pixels grow downwards: a falling loss has growing ones.
  EXPECT_LT(points[0].second, points[1].second);
  EXPECT_LT(points[1].second, points[2].second);
}

TEST(LineChart, PointsThatCannotBeDrawnAreLeftOut) {
  LineChart chart{"", "", "", false, {{"a", {0, 1, 2, 3}, {1, kNan, 2, INFINITY}}}};
  EXPECT_EQ(points_of(render_svg(chart), 0).size(), 2U);
  expect_well_formed(render_svg(chart));
  chart = {"", "", "", true, {{"a", {0, 1, 2, 3}, {1, 0, -2, 10}}}};
  EXPECT_EQ(points_of(render_svg(chart), 0).size(), 2U);
  expect_well_formed(render_svg(chart));
}

TEST(LineChart, LogarithmicAxisSpacesDecadesEvenly) {
  const auto points =
      points_of(render_svg(LineChart{"", "", "", true, {{"a", {0, 1, 2}, {100, 10, 1}}}}), 0);
  ASSERT_EQ(points.size(), 3U);
  EXPECT_NEAR(points[1].second - points[0].second, points[2].second - points[1].second, 0.2);
}

TEST(LineChart, NothingOrOnePointIsStillAPicture) {
  expect_well_formed(render_svg(LineChart{"empty", "x", "y", false, {}}));
  expect_well_formed(render_svg(LineChart{"empty", "x", "y", true, {{"a", {}, {}}}}));
  expect_well_formed(render_svg(LineChart{"one", "x", "y", false, {{"a", {5}, {5}}}}));
  expect_well_formed(render_svg(LineChart{"one", "x", "y", true, {{"a", {5}, {5}}}}));
  expect_well_formed(render_svg(LineChart{"none", "x", "y", true, {{"a", {5}, {-5}}}}));
}

TEST(LineChart, MarkupInNamesIsEscaped) {
  const std::string svg =
      render_svg(LineChart{"a < b & \"c\"", "x", "y", false, {{"<i>", {0}, {0}}}});
  expect_well_formed(svg);
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; &quot;c&quot;"));
  EXPECT_THAT(svg, HasSubstr("&lt;i&gt;"));
}

TEST(BarChart, BarsAreAsHighAsTheirValues) {
  const BarChart chart{"TPF", "tokens", {"ar", "jacobi"}, {"base", "final"}, {{1, 2}, {1, 4}}};
  const std::string svg = render_svg(chart);
  expect_well_formed(svg);
  const std::regex bar(
      "<rect x=\"([0-9.]+)\" y=\"[0-9.]+\" width=\"[0-9.]+\" height=\"([0-9.]+)\" "
      "fill=\"#[0-9a-f]+\"/>");
  std::vector<double> heights;
  for (std::sregex_iterator match(svg.begin(), svg.end(), bar), end; match != end; ++match) {
    if ((*match)[2] != "12") {  // the legend's squares
      heights.push_back(std::stod((*match)[2]));
    }
  }
  ASSERT_EQ(heights.size(), 4U);
  EXPECT_NEAR(heights[2], 2 * heights[0], 0.3);  // group by group: base, final, base, final
  EXPECT_NEAR(heights[3], 4 * heights[1], 0.5);
  EXPECT_THAT(svg, HasSubstr(">4.00<"));
}

TEST(BarChart, AMissingValueLeavesAGap) {
  const BarChart full{"", "", {"a", "b"}, {"s"}, {{1, 2}}};
  const BarChart gap{"", "", {"a", "b"}, {"s"}, {{1, kNan}}};
  EXPECT_EQ(count(render_svg(full), "<rect") - count(render_svg(gap), "<rect"), 1U);
  expect_well_formed(render_svg(gap));
  expect_well_formed(render_svg(BarChart{"", "", {"a"}, {"s"}, {{kNan}}}));
  expect_well_formed(render_svg(BarChart{"", "", {}, {}, {}}));
  expect_well_formed(render_svg(BarChart{"", "", {"a"}, {"s"}, {{0}}}));
}

}  // namespace
}  // namespace jforge
