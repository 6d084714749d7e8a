#include "results/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>

namespace jforge {

namespace {

// The data's area, and the whole with a legend of one line.
constexpr double kLeft = 72;
constexpr double kRight = 696;
constexpr double kTop = 44;
constexpr double kBottom = 336;
constexpr double kWidth = 720;
constexpr double kHeight = 420;
constexpr const char* kInk = "#333333";
// Okabe–Ito.
constexpr std::array<const char*, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#444444"};
constexpr const char* kSolid = "stroke-width=\"2\"";

const char* colour_of(std::size_t series) { return kColours[series % kColours.size()]; }

// Maps values to pixels from `from` to `to`.
struct Axis {
  ChartAxis spec;
  double from = 0;
  double to = 1;
  double low = std::numeric_limits<double>::infinity();  // log2 of the value if logarithmic
  double high = -std::numeric_limits<double>::infinity();

  [[nodiscard]] bool shows(double value) const {
    return std::isfinite(value) && (!spec.logarithmic || value > 0);
  }
  [[nodiscard]] double scaled(double v) const { return spec.logarithmic ? std::log2(v) : v; }
  void include(double value) {
    low = shows(value) ? std::min(low, scaled(value)) : low;
    high = shows(value) ? std::max(high, scaled(value)) : high;
  }
  // Widens the range at both ends by a share of its length.
  void close(double margin) {
    if (low > high) {
      low = 0;
      high = 1;
    }
    const bool zero = spec.from_zero && !spec.logarithmic && low >= 0;
    low = zero ? 0 : low;
    const double more = low < high ? margin * (high - low) : std::max(0.5, 1e-3 * std::abs(high));
    low -= zero ? 0 : more;
    high += more;
  }
  [[nodiscard]] double pixel(double value) const {
    return from + (scaled(value) - low) / (high - low) * (to - from);
  }
  [[nodiscard]] double value_at(double share) const {
    const double place = low + share * (high - low);
    return spec.logarithmic ? std::exp2(place) : place;
  }
  // Returns powers of 2 on a long logarithmic axis (for fractions 1, 2, 5 times powers of 10), else
  // about 8 multiples of 1, 2 or 5 times a power of 10.
  [[nodiscard]] std::vector<double> ticks() const {
    const bool powers = spec.logarithmic && high - low > 3;
    const bool decades = powers && low < -1;
    const double rounded = decades ? 0.11 : 0;  // rounds 2.15 to 2 and 4.64 to 5
    const double begin = powers ? low + rounded : value_at(0);
    const double end = powers ? high - rounded : value_at(1);
    const double unit = decades ? std::log2(10.0) / 3 : 1;
    const double rough = 0.999 * (end - begin) / 8;
    double step = powers ? unit * std::ceil(rough / unit / 1.5)
                         : std::pow(10.0, std::floor(std::log10(rough)));
    for (const double factor : {2.0, 2.5, 2.0}) {
      step *= !powers && step < rough ? factor : 1;
    }
    std::vector<double> ticks;
    for (double i = std::ceil(begin / step - 1e-9);
         i * step <= end + 1e-9 * step && ticks.size() < 20; ++i) {
      const double tick = powers ? std::exp2(i * step) : i * step + 0.0;  // not -0
      ticks.push_back(decades ? std::stod(fmt::format("{:.0e}", tick)) : tick);
    }
    return ticks;
  }
};

std::string xml_escaped(const std::string& text) {
  static const std::map<char, std::string> kEntities = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}};
  std::string result;
  for (const char c : text) {
    const auto entity = kEntities.find(c);
    result += entity == kEntities.end() ? std::string(1, c) : entity->second;
  }
  return result;
}

/// Returns the approximate width in pixels.
double text_width(const std::string& text, double size) {
  const auto letters = std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
  return 0.6 * size * static_cast<double>(letters);
}

std::string svg_line(double x1, double y1, double x2, double y2, const char* stroke,
                     const char* more = "") {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" {}/>\n", x1, y1,
      x2, y2, stroke, more);
}

std::string svg_rect(double x, double y, double width, double height, const char* fill) {
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x, y,
      width, height, fill);
}

// Rotated, in the middle of the area's height.
std::string upright_text(double x, const std::string& text) {
  const double y = (kTop + kBottom) / 2;
  return svg_text(x, y, text, "middle", 12, fmt::format("transform=\"rotate(-90 {} {})\"", x, y));
}

std::string fitted_text(double x, double y, double width, const std::string& text) {
  const double size = std::clamp(width / text_width(text, 1), 6.0, 12.0);
  return svg_text(x, y, text, "middle", static_cast<int>(size));
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {
    for (const ChartSeries& series : chart.series) {
      for (const auto* values : {&series.y, &series.low, &series.high, &series.raw}) {
        for (std::size_t i = 0; i < values->size(); ++i) {
          if (x_.shows(series.x[i]) && y_.shows((*values)[i])) {
            x_.include(series.x[i]);
            y_.include((*values)[i]);
          }
        }
      }
    }
    if (groups()) {
      x_.low = -0.5;
      x_.high = static_cast<double>(chart.x.names.size()) - 0.5;
    }
    x_.close(groups() ? 0 : 0.03);
    y_.close(groups() ? 0.15 : 0.03);
  }

  [[nodiscard]] std::string document() {
    axes();
    for (std::size_t s = 0; s < chart_.series.size(); ++s) {
      const ChartSeries& series = chart_.series[s];
      if (!groups()) {
        line(s, series.raw, "stroke-opacity=\"0.25\"");
        line(s, series.y, kSolid);
      }
      if (groups() || series.dots) {
        points(s);
      }
    }
    const double height = legend() + 22;
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
               "width=\"{0:.0f}\" height=\"{1:.0f}\" font-family=\"sans-serif\">\n"
               "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
               kWidth, height) +
           svg_text(kWidth / 2, 24, chart_.title, "middle", 15, "font-weight=\"bold\"") + svg_ +
           "</svg>\n";
  }

 private:
  [[nodiscard]] bool groups() const { return !chart_.x.names.empty(); }
  [[nodiscard]] double unit() const { return x_.pixel(1) - x_.pixel(0); }

  // Draws ticks with labels, and grid lines for the y axis.
  void axes() {
    for (const double tick : y_.ticks()) {
      svg_ += svg_line(x_.from, y_.pixel(tick), x_.to, y_.pixel(tick), "#dddddd") +
              svg_text(x_.from - 6, y_.pixel(tick) + 4, fmt::format("{:.6g}", tick), "end", 11);
    }
    for (const double tick : groups() ? std::vector<double>() : x_.ticks()) {
      svg_ += svg_line(x_.pixel(tick), kBottom, x_.pixel(tick), kBottom + 4, kInk) +
              svg_text(x_.pixel(tick), kBottom + 16, fmt::format("{:.6g}", tick), "middle", 11);
    }
    for (std::size_t g = 0; g < chart_.x.names.size(); ++g) {
      std::istringstream words(chart_.x.names[g]);
      double top = kBottom + 4;
      for (std::string word; words >> word;) {
        svg_ += fitted_text(x_.pixel(static_cast<double>(g)), top += 13, unit(), word);
      }
    }
    svg_ += upright_text(16, chart_.y.label) +
            svg_text((x_.from + x_.to) / 2, kBottom + 36, chart_.x.label, "middle", 12) +
            svg_line(x_.from, kTop, x_.from, kBottom, kInk) +
            svg_line(x_.from, kBottom, x_.to, kBottom, kInk);
  }

  void line(std::size_t s, const std::vector<double>& values, const char* more) {
    const std::vector<double>& xs = chart_.series[s].x;
    std::string points;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (x_.shows(xs[i]) && y_.shows(values[i])) {
        points += fmt::format("{:.1f},{:.1f} ", x_.pixel(xs[i]), y_.pixel(values[i]));
      }
    }
    if (!points.empty()) {
      svg_ += fmt::format("<polyline fill=\"none\" stroke=\"{}\" {} points=\"{}\"/>\n",
                          colour_of(s), more, points);
    }
  }

  // Draws dots or bars with error bars; a group's bars side by side.
  void points(std::size_t s) {
    const ChartSeries& series = chart_.series[s];
    const double count = groups() ? static_cast<double>(chart_.series.size()) : 1;
    const double width = std::min(60.0, 0.85 * unit() / count);
    const double offset = groups() ? (static_cast<double>(s) - (count - 1) / 2) * width : 0;
    for (std::size_t i = 0; i < series.y.size(); ++i) {
      if (!x_.shows(series.x[i]) || !y_.shows(series.y[i])) {
        continue;
      }
      const double x = x_.pixel(series.x[i]) + offset;
      double y = y_.pixel(series.y[i]);
      svg_ +=
          groups() && chart_.y.from_zero
              ? svg_rect(x - 0.45 * width, y, 0.9 * width, kBottom - y, colour_of(s))
              : fmt::format(
                    "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\" stroke=\"white\"/>\n",
                    x, y, colour_of(s));
      if (!series.low.empty() && y_.shows(series.low[i]) && y_.shows(series.high[i])) {
        y = y_.pixel(series.high[i]);
        svg_ += fmt::format(
            "<path d=\"M{0:.1f} {1:.1f}m-4 0h8m-4 0V{2:.1f}m-4 0h8\" stroke=\"#222222\"/>\n", x, y,
            y_.pixel(series.low[i]));
      }
      if (groups()) {
        const int digits = std::abs(series.y[i]) < 1000 ? 3 : 6;
        svg_ += fitted_text(x, y - 5, width, fmt::format("{:.{}g}", series.y[i], digits));
      }
    }
  }

  // Returns the last line's height.
  double legend() {
    double x = kLeft;
    double y = kHeight - 22;
    for (std::size_t s = 0; s < chart_.series.size(); ++s) {
      const ChartSeries& series = chart_.series[s];
      const double width = 48 + text_width(series.name, 12);
      if (x > kLeft && x + width > kWidth) {
        x = kLeft;
        y += 18;
      }
      svg_ += svg_line(x, y, x + 24, y, colour_of(s), kSolid) +
              svg_text(x + 30, y + 4, series.name, "start", 12);
      x += width;
    }
    return y;
  }

  const Chart& chart_;
  Axis x_{chart_.x, kLeft, kRight};
  Axis y_{chart_.y, kBottom, kTop};
  std::string svg_;
};

}  // namespace

std::string svg_text(double x, double y, const std::string& text, const char* anchor, int size,
                     const std::string& more) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\" {}>{}</text>\n", x, y,
      anchor, size, more, xml_escaped(text));
}

std::string render_svg(const Chart& chart) { return Drawing(chart).document(); }

}  // namespace jforge
