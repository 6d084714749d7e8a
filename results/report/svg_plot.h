#pragma once

/// Small SVG charts: lines over a numeric axis and grouped bars. Text output only; no state.

#include <string>
#include <vector>

namespace jforge {

struct LineSeries {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;  ///< Same size as x; points that are not finite are left out.
};

struct LineChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_y = false;  ///< Points ≤ 0 are left out.
  std::vector<LineSeries> series;
};

struct BarChart {
  std::string title;
  std::string y_label;
  std::vector<std::string> groups;          ///< Along the x axis.
  std::vector<std::string> series;          ///< Bars within a group.
  std::vector<std::vector<double>> values;  ///< [series][group]; NaN leaves a gap.
};

/// Complete SVG documents, 720×420.
[[nodiscard]] std::string render_svg(const LineChart& chart);
[[nodiscard]] std::string render_svg(const BarChart& chart);

/// About `count` round tick positions that cover [low, high] (steps of 1, 2 or 5 times a power of
/// ten).
[[nodiscard]] std::vector<double> nice_ticks(double low, double high, int count);

}  // namespace jforge
