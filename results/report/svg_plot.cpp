#include "results/report/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace jforge {

namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 420;
constexpr double kLeft = 72;
constexpr double kRight = 24;
constexpr double kTop = 44;
constexpr double kBottom = 84;
// Okabe–Ito: told apart by colour-blind readers too.
constexpr std::array<const char*, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#444444"};

const char* colour(std::size_t index) { return kColours[index % kColours.size()]; }

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string text_at(double x, double y, const std::string& text, const char* anchor, int size,
                    const char* more = "") {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\" {}>{}</text>\n", x, y,
      anchor, size, more, escaped(text));
}

std::string line_from_to(double x1, double y1, double x2, double y2, const char* stroke) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2,
      y2, stroke);
}

// Maps values to pixels along one axis.
struct Axis {
  double low = 0;
  double high = 1;
  double from = 0;  // pixel of low
  double to = 1;    // pixel of high
  bool logarithmic = false;

  [[nodiscard]] double pixel(double value) const {
    const double v = logarithmic ? std::log10(value) : value;
    return from + (v - low) / (high - low) * (to - from);
  }
};

Axis make_axis(double low, double high, double from, double to, bool logarithmic) {
  if (!(low <= high)) {  // nothing to show
    low = 0;
    high = 1;
    logarithmic = false;
  }
  if (logarithmic) {
    low = std::floor(std::log10(low));
    high = std::max(low + 1, std::ceil(std::log10(high)));
  } else if (low == high) {
    low -= 0.5;
    high += 0.5;
  }
  return {low, high, from, to, logarithmic};
}

std::vector<double> ticks_of(const Axis& axis) {
  if (!axis.logarithmic) {
    return nice_ticks(axis.low, axis.high, 6);
  }
  std::vector<double> ticks;
  for (double exponent = axis.low; exponent <= axis.high + 0.5; exponent += 1) {
    ticks.push_back(std::pow(10.0, exponent));
  }
  return ticks;
}

std::string frame(const std::string& title, const std::string& y_label, const Axis& y) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" "
      "font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  svg += text_at(kWidth / 2, 24, title, "middle", 15, "font-weight=\"bold\"");
  for (const double tick : ticks_of(y)) {
    const double pixel = y.pixel(tick);
    svg += line_from_to(kLeft, pixel, kWidth - kRight, pixel, "#dddddd");
    svg += text_at(kLeft - 6, pixel + 4, fmt::format("{:.4g}", tick), "end", 11);
  }
  svg += text_at(
      16, (kTop + kHeight - kBottom) / 2, y_label, "middle", 12,
      fmt::format("transform=\"rotate(-90 16 {:.1f})\"", (kTop + kHeight - kBottom) / 2).c_str());
  svg += line_from_to(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "#333333");
  svg += line_from_to(kLeft, kTop, kLeft, kHeight - kBottom, "#333333");
  return svg;
}

std::string legend(const std::vector<std::string>& names) {
  std::string svg;
  double x = kLeft;
  for (std::size_t i = 0; i < names.size(); ++i) {
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n",
                       x, kHeight - 26, colour(i));
    svg += text_at(x + 17, kHeight - 16, names[i], "start", 12);
    x += 40 + 7.0 * static_cast<double>(names[i].size());
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
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double x_low = kInfinity;
  double x_high = -kInfinity;
  double y_low = kInfinity;
  double y_high = -kInfinity;
  const auto drawable = [&](double x, double y) {
    return std::isfinite(x) && std::isfinite(y) && (!chart.log_y || y > 0);
  };
  for (const LineSeries& series : chart.series) {
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (drawable(series.x[i], series.y[i])) {
        x_low = std::min(x_low, series.x[i]);
        x_high = std::max(x_high, series.x[i]);
        y_low = std::min(y_low, series.y[i]);
        y_high = std::max(y_high, series.y[i]);
      }
    }
  }
  const Axis x = make_axis(x_low, x_high, kLeft, kWidth - kRight, false);
  const Axis y = make_axis(y_low, y_high, kHeight - kBottom, kTop, chart.log_y && y_low > 0);
  std::string svg = frame(chart.title, chart.y_label, y);
  for (const double tick : nice_ticks(x.low, x.high, 8)) {
    svg +=
        text_at(x.pixel(tick), kHeight - kBottom + 16, fmt::format("{:.6g}", tick), "middle", 11);
  }
  svg +=
      text_at((kLeft + kWidth - kRight) / 2, kHeight - kBottom + 36, chart.x_label, "middle", 12);
  std::vector<std::string> names;
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const LineSeries& series = chart.series[s];
    names.push_back(series.name);
    std::string points;
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (drawable(series.x[i], series.y[i])) {
        points += fmt::format("{:.1f},{:.1f} ", x.pixel(series.x[i]), y.pixel(series.y[i]));
      }
    }
    svg +=
        fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\" points=\"{}\"/>\n",
                    colour(s), points);
  }
  return svg + legend(names) + "</svg>\n";
}

std::string render_svg(const BarChart& chart) {
  double high = 0;
  for (const auto& series : chart.values) {
    for (const double value : series) {
      if (std::isfinite(value)) {
        high = std::max(high, value);
      }
    }
  }
  const Axis y = make_axis(0, high > 0 ? high * 1.1 : 1, kHeight - kBottom, kTop, false);
  std::string svg = frame(chart.title, chart.y_label, y);
  const double group_width = (kWidth - kLeft - kRight) /
                             static_cast<double>(std::max<std::size_t>(1, chart.groups.size()));
  const double bar_width = std::min(
      60.0, group_width * 0.8 / static_cast<double>(std::max<std::size_t>(1, chart.series.size())));
  for (std::size_t g = 0; g < chart.groups.size(); ++g) {
    const double centre = kLeft + group_width * (static_cast<double>(g) + 0.5);
    svg += text_at(centre, kHeight - kBottom + 18, chart.groups[g], "middle", 12);
    for (std::size_t s = 0; s < chart.series.size(); ++s) {
      const double value = chart.values[s][g];
      if (!std::isfinite(value)) {
        continue;
      }
      const double left =
          centre +
          (static_cast<double>(s) - static_cast<double>(chart.series.size()) / 2) * bar_width;
      const double top = y.pixel(value);
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n",
          left + 2, top, bar_width - 4, kHeight - kBottom - top, colour(s));
      svg += text_at(left + bar_width / 2, top - 5, fmt::format("{:.2f}", value), "middle", 11);
    }
  }
  return svg + legend(chart.series) + "</svg>\n";
}

}  // namespace jforge
