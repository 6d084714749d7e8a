#pragma once

/// SVG charts for colour-blind readers, too: lines, and bars with intervals.

#include <string>
#include <vector>

namespace jforge {

struct ChartAxis {
  std::string label = {};
  bool logarithmic = false;             ///< Values ≤ 0 are left out.
  bool from_zero = false;               ///< If linear; otherwise the data's range.
  std::vector<std::string> names = {};  ///< Groups at x = 0, 1, …; x axis only.
};

/// Leaves out points with a non-finite coordinate.
struct ChartSeries {
  std::string name;
  std::vector<double> x = {};
  std::vector<double> y = {};    ///< As long as x, like the others unless empty.
  std::vector<double> low = {};  ///< Error bars of dots and groups.
  std::vector<double> high = {};
  std::vector<double> raw = {};  ///< Before smoothing to y: a faint line.
  bool dots = false;             ///< For measurements.
};

/// Groups are bars if y begins at 0, else dots: cut bars mislead.
struct Chart {
  std::string title = {};
  ChartAxis x = {};
  ChartAxis y = {};
  std::vector<ChartSeries> series = {};
};

/// Returns a document of 720 × 420, higher if the legend needs several lines.
[[nodiscard]] std::string render_svg(const Chart& chart);

/// Returns a text element. `anchor`: start, middle or end; `more`: further attributes.
[[nodiscard]] std::string svg_text(double x, double y, const std::string& text, const char* anchor,
                                   int size, const std::string& more = {});

}  // namespace jforge
