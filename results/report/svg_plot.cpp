#include "results/report/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "results/report/svg_axes.h"

namespace jforge {

namespace {

constexpr double kMargin = 0.03;

// Which points of a chart can be drawn, and the ranges they take up.
struct LineFrame {
  explicit LineFrame(const LineChart& line_chart) : chart(line_chart) {
    ValueRange x_range;
    ValueRange y_range;
    for (const LineSeries& series : chart.series) {
      for (std::size_t i = 0; i < series.x.size(); ++i) {
        if (drawable(series.x[i], series.y[i])) {
          x_range.include(series.x[i]);
          y_range.include(series.y[i]);
          if (has_band(series, i)) {
            y_range.include(series.low[i]);
            y_range.include(series.high[i]);
          }
        }
      }
    }
    const bool anything = y_range.low <= y_range.high;
    for (const PlotMark& guide : chart.guides) {
      if (anything && drawable_x(guide.x)) {
        x_range.include(guide.x);
      }
    }
    if (anything && chart.y_from_zero && !chart.log_y) {
      y_range.include(0);
    }
    x = make_plot_axis(x_range.low, x_range.high, area.left, area.right, chart.x_scale, kMargin);
    y = make_plot_axis(y_range.low, y_range.high, area.bottom, area.top,
                       chart.log_y ? AxisScale::log10 : AxisScale::linear, kMargin);
    if (chart.y_from_zero && !chart.log_y && y_range.low >= 0 && anything) {
      y.low = 0;
      y.high += kMargin * y.high;
    }
  }

  [[nodiscard]] bool drawable_x(double value) const {
    return std::isfinite(value) && (chart.x_scale == AxisScale::linear || value > 0);
  }
  [[nodiscard]] bool drawable_y(double value) const {
    return std::isfinite(value) && (!chart.log_y || value > 0);
  }
  [[nodiscard]] bool drawable(double x_value, double y_value) const {
    return drawable_x(x_value) && drawable_y(y_value);
  }
  [[nodiscard]] bool has_band(const LineSeries& series, std::size_t i) const {
    return i < series.low.size() && i < series.high.size() && drawable_y(series.low[i]) &&
           drawable_y(series.high[i]);
  }

  const LineChart& chart;
  PlotArea area;
  PlotAxis x;
  PlotAxis y;
};

// The upper edge from left to right, then the lower one back.
std::string band(const LineFrame& frame, const LineSeries& series, const char* colour) {
  std::string upper;
  std::string lower;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    if (frame.drawable(series.x[i], series.y[i]) && frame.has_band(series, i)) {
      const double px = frame.x.pixel(series.x[i]);
      upper += fmt::format("{}{:.1f} {:.1f} ", upper.empty() ? "M" : "L", px,
                           frame.y.pixel(series.high[i]));
      lower.insert(0, fmt::format("L{:.1f} {:.1f} ", px, frame.y.pixel(series.low[i])));
    }
  }
  return upper.empty() ? std::string()
                       : fmt::format("<path d=\"{}{}Z\" fill=\"{}\" fill-opacity=\"0.18\"/>\n",
                                     upper, lower, colour);
}

std::string line(const LineFrame& frame, const LineSeries& series, const char* colour) {
  std::string points;
  std::string dots;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    if (!frame.drawable(series.x[i], series.y[i])) {
      continue;
    }
    const double px = frame.x.pixel(series.x[i]);
    const double py = frame.y.pixel(series.y[i]);
    points += fmt::format("{:.1f},{:.1f} ", px, py);
    if (series.markers) {
      dots += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\" stroke=\"white\"/>\n", px, py,
          colour);
    }
  }
  return fmt::format(
             "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" {}points=\"{}\"/>\n",
             colour, series.dashed ? "stroke-dasharray=\"6 4\" " : "", points) +
         dots;
}

std::string guides(const LineFrame& frame) {
  std::string svg;
  for (const PlotMark& guide : frame.chart.guides) {
    if (!frame.drawable_x(guide.x)) {
      continue;
    }
    const double px = frame.x.pixel(guide.x);
    svg +=
        svg_line(px, frame.area.top, px, frame.area.bottom, "#555555", "stroke-dasharray=\"3 4\"");
    const bool right = px + text_width(guide.label, 12) + 10 < frame.area.right;
    svg += svg_text(px + (right ? 6 : -6), frame.area.top + 12, guide.label,
                    right ? "start" : "end", 12);
  }
  return svg;
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int count) {
  const double rough = (high - low) / std::max(1, count);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = power;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    step = factor * power;
    if (step >= rough * 0.999) {
      break;
    }
  }
  std::vector<double> ticks;
  for (double tick = std::ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9;
       tick += step) {
    ticks.push_back(std::abs(tick) < step * 1e-9 ? 0.0 : tick);
  }
  return ticks;
}

std::string render_svg(const LineChart& chart) {
  const LineFrame frame(chart);
  std::vector<LegendEntry> entries;
  std::string bands;
  std::string lines;
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const LineSeries& series = chart.series[s];
    entries.push_back({.name = series.name,
                       .colour = series_colour(s),
                       .line = true,
                       .dashed = series.dashed,
                       .markers = series.markers});
    bands += band(frame, series, series_colour(s));
    lines += line(frame, series, series_colour(s));
  }
  int legend_lines = 0;
  const std::string legend = svg_legend(entries, kPlotHeight - 28, legend_lines);
  return svg_begin(chart.title, kPlotHeight + kLegendLine * std::max(0, legend_lines - 1)) +
         svg_y_axis(frame.area, frame.y, frame.y.ticks(), chart.y_label, true) +
         svg_x_axis(frame.area, frame.x, frame.x.ticks(), chart.x_label) + bands + guides(frame) +
         lines + svg_marks(chart.marks, frame.area, frame.x, frame.y) + legend + "</svg>\n";
}

}  // namespace jforge
