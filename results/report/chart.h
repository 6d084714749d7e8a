#pragma once

/// Charts as SVG documents: lines, bars with intervals, and functions of two settings as coloured
/// cells. Colours are told apart by colour-blind readers too.

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace jforge {

struct ChartAxis {
  std::string label = {};
  bool logarithmic = false;             ///< Values ≤ 0 are left out.
  bool from_zero = false;               ///< If linear; otherwise the range is that of the data.
  std::vector<std::string> names = {};  ///< Of an x axis of groups: those at x = 0, 1, …
};

struct ChartPoint {
  double x = 0;
  double y = 0;
  std::string label = {};
};

/// Points with a coordinate that is not finite are left out.
struct ChartSeries {
  std::string name;
  std::vector<double> x = {};
  std::vector<double> y = {};    ///< As many as x, as are those below unless they are empty.
  std::vector<double> low = {};  ///< Interval: error bars of dots and groups.
  std::vector<double> high = {};
  std::vector<double> raw = {};  ///< What y is smoothed from: a faint line.
  bool dashed = false;           ///< For fits.
  bool dots = false;             ///< For measurements.
};

/// Over groups each value is a bar if y begins at 0, else a dot, since cut bars mislead.
struct Chart {
  std::string title = {};
  ChartAxis x = {};
  ChartAxis y = {};
  std::vector<ChartSeries> series = {};
  std::optional<ChartPoint> ring = {};  ///< Marks the best point.
  /// If set: cells coloured by its value. It is asked within the range of the data only.
  std::function<double(double x, double y)> surface = {};
  std::string surface_label = {};
};

/// Returns a document 720 wide and 420 high, higher if the legend needs several lines.
[[nodiscard]] std::string render_svg(const Chart& chart);

/// Returns `text` with &, <, > and " as entities.
[[nodiscard]] std::string xml_escaped(const std::string& text);
/// Returns the approximate width in pixels of `text` at a font size.
[[nodiscard]] double text_width(const std::string& text, double size);
/// Returns a text element. `anchor`: start, middle or end; `more`: further attributes.
[[nodiscard]] std::string svg_text(double x, double y, const std::string& text, const char* anchor,
                                   int size, const std::string& more = {});

}  // namespace jforge
