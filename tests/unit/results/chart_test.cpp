#include "results/report/chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <vector>

namespace jforge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kBottom = 336;  // of the data area

/// Returns the document after checking that elements nest and numbers are finite.
std::string well_formed(const Chart& chart) {
  std::string svg = render_svg(chart);
  const std::regex tag("<(/?)([a-z]+)[^<>]*?(/?)>");
  std::vector<std::string> open;
  for (std::sregex_iterator match(svg.begin(), svg.end(), tag), end; match != end; ++match) {
    if ((*match)[1].length() == 0 && (*match)[3].length() == 0) {
      open.push_back((*match)[2]);
    } else if ((*match)[1].length() > 0) {
      EXPECT_EQ(open.empty() ? "nothing" : open.back(), (*match)[2]) << svg;
      open.resize(std::max<std::size_t>(open.size(), 1) - 1);
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_TRUE(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
  EXPECT_THAT(svg, Not(testing::ContainsRegex("[\" ,]-?(nan|inf)")));
  return svg;
}

std::vector<double> numbers(const std::string& svg, const std::string& pattern) {
  std::vector<double> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator match(svg.begin(), svg.end(), regex), end; match != end; ++match) {
    found.push_back(std::stod((*match)[1]));
  }
  return found;
}

std::vector<double> dots(const std::string& svg, const std::string& coordinate) {
  return numbers(svg, "<circle[^>]*" + coordinate + "=\"([-0-9.]+)\"[^>]*r=\"4\"");
}
std::vector<double> ticks(const std::string& svg) {
  return numbers(svg, "text-anchor=\"end\" font-size=\"11\" >([-0-9.]+)<");
}

Chart chart_of(const std::vector<double>& x, const std::vector<double>& y) {
  return {.title = "t",
          .x = {"x"},
          .y = {"y"},
          .series = {{.name = "a", .x = x, .y = y, .dots = true}}};
}

TEST(Chart, DrawsEverySeriesWithItsName) {
  Chart chart = chart_of({0, 1, 2}, {3, 2, 1});
  chart.series.push_back({.name = "b", .x = {0, 2}, .y = {1, 3}, .raw = {1, 2}});
  const std::string svg = well_formed(chart);
  for (const char* text : {">t<", ">x<", ">y<", ">a<", ">b<", "stroke-opacity"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  EXPECT_EQ(numbers(svg, "<polyline[^>]*points=\"([0-9.]+)").size(), 3U) << "b has two lines";
  const std::vector<double> x = dots(svg, "cx");
  const std::vector<double> y = dots(svg, "cy");
  ASSERT_EQ(x.size(), 3U);
  EXPECT_NEAR(x[1] - x[0], x[2] - x[1], 0.2);
  EXPECT_LT(y[0], y[1]) << "pixels grow downwards";
}

TEST(Chart, AxesFitTheData) {
  EXPECT_THAT(ticks(well_formed(chart_of({0, 1}, {95.4, 99.6}))), ElementsAre(96, 97, 98, 99));
  EXPECT_THAT(ticks(well_formed(chart_of({0, 1}, {-0.3, 0.3}))), testing::Contains(0.0));
  well_formed(chart_of({0, 1}, {1e17, 1e17 + 16}));  // must end
  Chart chart = chart_of({0, 1}, {50, 100});
  chart.y.from_zero = true;
  const std::string svg = well_formed(chart);
  EXPECT_EQ(ticks(svg).front(), 0);
  EXPECT_NEAR(kBottom - dots(svg, "cy")[1], 2 * (kBottom - dots(svg, "cy")[0]), 0.3);
}

TEST(Chart, LogarithmicAxesSpaceFactorsEvenly) {
  Chart chart = chart_of({8, 16, 32, 64, 128}, {100, 10, 1, 0.1, 0.01});
  chart.x.logarithmic = chart.y.logarithmic = true;
  const std::string svg = well_formed(chart);
  for (const char* coordinate : {"cx", "cy"}) {
    const std::vector<double> at = dots(svg, coordinate);
    ASSERT_EQ(at.size(), 5U);
    EXPECT_NEAR(at[1] - at[0], at[4] - at[3], 0.2);
  }
  EXPECT_THAT(numbers(svg, "text-anchor=\"middle\" font-size=\"11\" >([0-9.]+)<"),
              ElementsAre(8, 16, 32, 64, 128));
  chart.series[0].y = {8, 4, 2, 1, 0.25};
  EXPECT_THAT(ticks(well_formed(chart)), ElementsAre(0.5, 1, 2, 5));
  chart.series[0].y = {1, 0, -1, kNan, 2};
  EXPECT_EQ(dots(well_formed(chart), "cx").size(), 2U) << "what it cannot show is left out";
}

TEST(Chart, NothingAndValuesThatAreNotFiniteAreStillAPicture) {
  EXPECT_EQ(dots(well_formed(chart_of({0, 1, 2, 3}, {1, kNan, 2, INFINITY})), "cx").size(), 2U);
  for (Chart chart : {Chart{}, chart_of({}, {}), chart_of({5}, {5}), chart_of({5}, {-5}),
                      chart_of({5}, {kNan}), chart_of({0}, {0})}) {
    for (const bool logarithmic : {false, true}) {
      chart.x.logarithmic = chart.y.logarithmic = logarithmic;
      well_formed(chart);
    }
    chart.x = {.names = {"group"}};
    well_formed(chart);
  }
}

TEST(Chart, MarkupIsEscaped) {
  Chart chart = chart_of({0}, {0});
  chart.title = "a < b & \"c\"";
  chart.series[0].name = "<i>";
  const std::string svg = well_formed(chart);
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; &quot;c&quot;"));
  EXPECT_THAT(svg, HasSubstr(">&lt;i&gt;<"));
}

TEST(Chart, LongLegendsTakeMoreLinesInsteadOfOverlapping) {
  Chart chart;
  for (int i = 0; i < 7; ++i) {
    chart.series.push_back({.name = "a rather long name of series " + std::to_string(i)});
  }
  const std::string svg = well_formed(chart);
  const std::vector<double> x = numbers(svg, "<text x=\"([0-9.]+)\"[^>]*>a rather");
  const std::vector<double> y = numbers(svg, " y=\"([0-9.]+)\"[^>]*>a rather");
  ASSERT_EQ(x.size(), 7U);
  for (std::size_t i = 1; i < x.size(); ++i) {
    EXPECT_TRUE(y[i] > y[i - 1] || x[i] > x[i - 1] + 200);
    EXPECT_LT(x[i] + 200, 720);
  }
  EXPECT_GT(numbers(svg, "height=\"([0-9.]+)\"")[0], y.back());
}

TEST(Chart, BarsAreAsHighAsTheirValuesAndHaveErrorBars) {
  Chart chart{.x = {.names = {"gsm8k ar", "gsm8k jacobi"}}, .y = {"TPF", false, true}};
  chart.series = {{"base", {0, 1}, {10, 20}, {5, kNan}, {15, kNan}},
                  {"final", {0, 1}, {12345, 40}}};
  std::string svg = well_formed(chart);
  const std::vector<double> heights = numbers(svg, "<rect[^%>]*height=\"([0-9.]+)\"");
  ASSERT_EQ(heights.size(), 4U);
  EXPECT_NEAR(heights[2], kBottom - 44 - heights[2] * 0.15, 0.5) << "15 % are left for the numbers";
  EXPECT_EQ(numbers(svg, "(22)2222").size(), 1U) << "one error bar";
  for (const char* text : {">gsm8k<", ">jacobi<", ">12345<", ">20<", ">base<"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  chart.y.from_zero = false;  // An axis that does not begin at zero has dots.
  chart.series = {{"base", {0, 1}, {95.4, 99.6}}};
  svg = well_formed(chart);
  EXPECT_EQ(dots(svg, "cx").size(), 2U);
  EXPECT_GT(dots(svg, "cy")[0] - dots(svg, "cy")[1], 200);
}

}  // namespace
}  // namespace jforge
