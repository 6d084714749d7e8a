#include "results/report/sweep_section.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "results/analysis/polynomial_surface.h"
#include "results/analysis/roofline.h"
#include "results/report/recorded_settings.h"
#include "results/report/speed_figures.h"
#include "results/report/svg_plot.h"
#include "runtime/error.h"

namespace jforge {

namespace {

constexpr const char* kSpeed = "tokens_per_second";
// Where decoding several tokens at once pays most: what curves and surfaces show.
constexpr double kBatch = 1;
constexpr const char* kFurtherTasks = "further_tasks";
constexpr const char* kBlockSize = "block_size";
constexpr int kCurveSteps = 120;
constexpr int kContourSteps = 48;
// More lines than colours cannot be told apart.
constexpr std::size_t kMostLines = 7;
constexpr std::size_t kMostTicks = 10;
// Third over first quartile of a latency, from which it says more of other work than of the pass.
constexpr double kUnsteady = 1.5;

[[noreturn]] void refuse(const std::string& what) {
  throw DataError("sweep/sweep.json: " + what + "; sweep again");
}

// One task's sweep, with names and places of keys settled.
struct Sweep {
  std::string model;
  std::string task;
  std::string method;
  std::vector<std::string> keys;
  ReportJson baseline;
  std::vector<const ReportJson*> points;

  [[nodiscard]] std::string name() const { return task + " " + method; }
  [[nodiscard]] std::vector<double> inputs(const ReportJson& point) const {
    std::vector<double> values;
    for (const std::string& key : keys) {
      values.push_back(json_number(point["settings"], key));
      if (!std::isfinite(values.back())) {
        refuse("a point's setting " + key + " is not a number");
      }
    }
    return values;
  }
  // Of all points, then the baseline's if there is one.
  [[nodiscard]] std::vector<const ReportJson*> all_figures() const {
    std::vector<const ReportJson*> figures = points;
    if (baseline.is_object()) {
      figures.push_back(&baseline);
    }
    return figures;
  }
};

Sweep read_sweep(const ReportJson& json) {
  const auto array = [&](const char* key) { return json.contains(key) && json[key].is_array(); };
  if (!json.is_object() || !array("keys") || !array("points")) {
    refuse("no \"keys\" or no \"points\"");
  }
  Sweep sweep{json_text(json, "model"),
              json_text(json, "task"),
              json_text(json, "method"),
              {},
              json.value("baseline", ReportJson()),
              {}};
  for (const auto& key : json["keys"]) {
    if (!key.is_string()) {
      refuse("a key is not a text");
    }
    sweep.keys.push_back(key.get<std::string>());
  }
  for (const auto& point : json["points"]) {
    if (!point.is_object() || !point.contains("settings") || !point["settings"].is_object()) {
      refuse("a point has no \"settings\"");
    }
    sweep.points.push_back(&point);
  }
  std::ranges::stable_sort(sweep.points, {}, [&](const ReportJson* p) { return sweep.inputs(*p); });
  return sweep;
}

std::string setting_text(const std::vector<std::string>& keys, const std::vector<double>& values) {
  std::string text;
  for (std::size_t k = 0; k < keys.size(); ++k) {
    text += fmt::format("{}{} = {:.4g}", text.empty() ? "" : ", ", keys[k], values[k]);
  }
  return text;
}

// Tokens per second of one setting at batch 1, with their interval.
struct PointSpeed {
  SurfacePoint point;
  double low = 0;
  double high = 0;
};

struct Speeds {
  std::vector<PointSpeed> settings;
  double baseline = std::nan("");

  [[nodiscard]] std::vector<SurfacePoint> points() const {
    std::vector<SurfacePoint> found;
    for (const PointSpeed& speed : settings) {
      found.push_back(speed.point);
    }
    return found;
  }
};

// What was measured by interleaved repeats.
Speeds measured_speeds(const Sweep& sweep) {
  Speeds speeds;
  for (const ReportJson* figures : sweep.points) {
    const ReportJson* const speed = speed_at(*figures, kBatch);
    if (speed != nullptr && std::isfinite(json_number(*speed, kSpeed))) {
      speeds.settings.push_back({{sweep.inputs(*figures), json_number(*speed, kSpeed)},
                                 json_number(*speed, "tokens_per_second_low"),
                                 json_number(*speed, "tokens_per_second_high")});
    }
  }
  if (sweep.baseline.is_object()) {
    if (const ReportJson* const speed = speed_at(sweep.baseline, kBatch)) {
      speeds.baseline = json_number(*speed, kSpeed);
    }
  }
  return speeds;
}

// The key that a curve of speeds is drawn over: the only one that varies.
std::optional<std::size_t> curve_key(const Sweep& sweep, const std::vector<SurfacePoint>& points) {
  std::vector<std::size_t> varied;
  for (std::size_t k = 0; k < sweep.keys.size(); ++k) {
    if (std::ranges::any_of(
            points, [&](const SurfacePoint& p) { return p.inputs[k] != points[0].inputs[k]; })) {
      varied.push_back(k);
    }
  }
  if (varied.size() == 1) {
    return varied.front();
  }
  return sweep.keys.size() == 1 ? std::optional<std::size_t>(0) : std::nullopt;
}

// Rows of a table over the settings: the baseline, then every point. `cells` gives what stands
// behind the keys, for figures and whether they are the baseline's.
template <class Cells>
std::string settings_table(const Sweep& sweep, const std::vector<std::string>& heads,
                           const Cells& cells) {
  TableCells rows = {sweep.keys};
  rows[0].insert(rows[0].end(), heads.begin(), heads.end());
  const auto add = [&](std::vector<std::string> row, std::vector<std::string> values) {
    row.insert(row.end(), std::make_move_iterator(values.begin()),
               std::make_move_iterator(values.end()));
    rows.push_back(std::move(row));
  };
  if (sweep.baseline.is_object()) {
    // What decides its tokens too is its own; block sizes and the like it has none.
    std::vector<std::string> row;
    for (const std::string& key : sweep.keys) {
      const auto is_key = [&](const auto& setting) { return setting.first == key; };
      row.push_back(std::ranges::any_of(kSamplingSettings, is_key)
                        ? recorded_setting(sweep.baseline, key)
                        : "–");
    }
    row[0] = row[0] == "–" ? "AR" : "AR, " + row[0];
    add(std::move(row), cells(sweep.baseline, true));
  }
  for (const ReportJson* point : sweep.points) {
    std::vector<std::string> row;
    for (const double value : sweep.inputs(*point)) {
      row.push_back(fmt::format("{:.4g}", value));
    }
    add(std::move(row), cells(*point, false));
  }
  return markdown_table(rows, sweep.keys.size());
}

std::string accuracy_table(const Sweep& sweep) {
  return settings_table(
      sweep, {"accuracy", "95 % interval", "TPF", "95 % interval", "forwards", "differs from AR"},
      [](const ReportJson& figures, bool baseline) -> std::vector<std::string> {
        return {shown(100 * json_number(figures, "accuracy"), "{:.1f} %"),
                accuracy_interval(figures),
                shown(json_number(figures, "tpf"), "{:.2f}"),
                interval_text(figures, "tpf", "{:.2f}"),
                shown(json_number(figures, "forwards"), "{:.0f}"),
                baseline ? "–"
                         : shown(json_number(figures, "disagreements_with_ar"), "{:.0f} problems")};
      });
}

FastestByClock fastest_of(const Sweep& sweep, double batch) {
  const NamedFigures baseline{"AR", sweep.baseline.is_object() ? &sweep.baseline : nullptr};
  std::vector<NamedFigures> settings;
  for (const ReportJson* point : sweep.points) {
    settings.push_back({setting_text(sweep.keys, sweep.inputs(*point)), point});
  }
  return fastest_by_clock(baseline, settings, batch);
}

// At each batch size, with the fastest marked; empty where no speed was measured.
std::string speed_tables(const Sweep& sweep) {
  std::string text;
  for (const double batch : speed_batches(sweep.all_figures())) {
    const FastestByClock fastest = fastest_of(sweep, batch);
    const ReportJson* const marked = fastest.text.empty() ? nullptr
                                     : fastest.index < 0
                                         ? &sweep.baseline
                                         : sweep.points[static_cast<std::size_t>(fastest.index)];
    text += fmt::format("Speed at batch {:.0f}:\n\n", batch);
    text += settings_table(
        sweep, {"tokens/s (95 %)", "over AR (95 %)", ""},
        [&](const ReportJson& figures, bool /*baseline*/) -> std::vector<std::string> {
          const ReportJson* const speed = speed_at(figures, batch);
          return {with_interval(speed, kSpeed, "{:.0f}"),
                  with_interval(speed, "speed_up", "{:.2f}", "×"),
                  &figures != marked ? ""
                  : fastest.alone    ? "fastest"
                                     : "highest"};
        });
    text += fastest.text.empty() ? "\n"
                                 : fmt::format("\nFastest by the clock at batch {:.0f}: {}.\n\n",
                                               batch, fastest.text);
  }
  return text + speed_remarks(sweep.all_figures());
}

AxisScale scale_of(const SurfaceAxis& axis) {
  return axis.geometric ? AxisScale::log2 : AxisScale::linear;
}

// The measured values as ticks, unless they would be crowded.
std::vector<double> few(const std::vector<double>& values) {
  return values.size() <= kMostTicks ? values : std::vector<double>();
}

// The measured speeds over one key, the others being the same everywhere, the fitted curve and its
// best point if there is one.
std::string speed_curve(const Sweep& sweep, const Speeds& speeds, std::size_t key,
                        const PolynomialSurface* surface) {
  const std::vector<SurfacePoint> points = speeds.points();
  LineSeries dots{"measured, 95 % interval shaded", {}, {}};
  dots.markers = true;
  for (const PointSpeed& speed : speeds.settings) {
    dots.x.push_back(speed.point.inputs[key]);
    dots.y.push_back(speed.point.value);
    dots.low.push_back(speed.low);
    dots.high.push_back(speed.high);
  }
  const SurfacePoint& measured = best_measured(points);
  LineChart chart{"Speed of " + sweep.name(),
                  sweep.keys[key],
                  "tokens/s at batch 1, without prefill",
                  false,
                  {dots}};
  chart.y_from_zero = true;
  chart.marks = {{measured.inputs[key], measured.value, "★ fastest setting"}};
  if (surface != nullptr) {
    const SurfaceAxis& axis = surface->axes()[key];
    std::vector<double> inputs = measured.inputs;
    LineSeries curve{fmt::format("polynomial of degree {}", surface->degree()), {}, {}};
    curve.dashed = true;
    for (int i = 0; i <= kCurveSteps; ++i) {
      inputs[key] = axis.unscaled(2.0 * i / kCurveSteps - 1);
      curve.x.push_back(inputs[key]);
      curve.y.push_back(surface->evaluate(inputs));
    }
    chart.series.push_back(std::move(curve));
    chart.x_scale = scale_of(axis);
    const SurfacePoint predicted = surface->best_predicted();
    if (predicted.inputs != measured.inputs) {
      chart.marks.push_back({predicted.inputs[key], predicted.value, "☆ fastest predicted", true});
    }
  } else if (sweep.keys[key] == kBlockSize) {
    chart.x_scale = AxisScale::log2;
  }
  if (std::isfinite(speeds.baseline)) {
    chart.series.push_back({"AR",
                            {points.front().inputs[key], points.back().inputs[key]},
                            {speeds.baseline, speeds.baseline}});
  }
  return render_svg(chart);
}

// Two keys of several: the surface over them, all others as in the fastest measured setting.
std::string speed_contour(const Sweep& sweep, const std::vector<SurfacePoint>& points,
                          const PolynomialSurface& surface, const SurfacePoint& measured,
                          std::size_t first, std::size_t second) {
  const SurfaceAxis& x = surface.axes()[first];
  const SurfaceAxis& y = surface.axes()[second];
  ContourPlot plot{.title = "Speed of " + sweep.name(),
                   .x_label = sweep.keys[first],
                   .y_label = sweep.keys[second],
                   .value_label = "tokens/s",
                   .x_scale = scale_of(x),
                   .y_scale = scale_of(y),
                   .x_ticks = few(x.measured),
                   .y_ticks = few(y.measured)};
  for (int i = 0; i <= kContourSteps; ++i) {
    plot.x.push_back(x.unscaled(2.0 * i / kContourSteps - 1));
    plot.y.push_back(y.unscaled(2.0 * i / kContourSteps - 1));
  }
  std::vector<double> inputs = measured.inputs;
  SurfacePoint best{measured.inputs, -std::numeric_limits<double>::infinity()};
  for (const double row : plot.y) {
    auto& values = plot.values.emplace_back();
    for (const double column : plot.x) {
      inputs[first] = column;
      inputs[second] = row;
      values.push_back(surface.evaluate(inputs));
      if (values.back() > best.value) {
        best = {inputs, values.back()};
      }
    }
  }
  for (const SurfacePoint& point : points) {
    bool in_plane = true;
    for (std::size_t k = 0; k < point.inputs.size(); ++k) {
      in_plane = in_plane && (k == first || k == second || point.inputs[k] == measured.inputs[k]);
    }
    if (in_plane) {
      plot.measured.push_back({point.inputs[first], point.inputs[second], ""});
    }
  }
  plot.marks = {{measured.inputs[first], measured.inputs[second],
                 fmt::format("★ measured {:.0f}", measured.value)}};
  if (best.inputs != measured.inputs) {
    plot.marks.push_back({best.inputs[first], best.inputs[second],
                          fmt::format("☆ predicted {:.0f}", best.value), true});
  }
  return render_svg(plot);
}

// Nothing, and a note, where the measured settings hold too little for a surface, or scatter so
// much that it would predict no better than their mean.
std::optional<PolynomialSurface> fitted_surface(ReportWriter& report, const Sweep& sweep,
                                                const std::vector<SurfacePoint>& points) {
  try {
    const PolynomialSurface surface = PolynomialSurface::fit(points);
    if (surface.degree() > 0) {
      return surface;
    }
    report.missing.push_back(fmt::format(
        "surface over {}: no polynomial predicts a setting left out better than the mean of the "
        "others; measure more settings, or on a quieter machine",
        sweep.name()));
    return std::nullopt;
  } catch (const DataError& error) {
    report.missing.push_back(fmt::format("surface over {}: {}", sweep.name(), error.what()));
    return std::nullopt;
  }
}

void write_surface(ReportWriter& report, const Sweep& sweep,
                   const std::vector<SurfacePoint>& points, const PolynomialSurface& surface,
                   const std::string& figure_name) {
  const SurfacePoint& measured = best_measured(points);
  const SurfacePoint predicted = surface.best_predicted();
  report.text += fmt::format(
      "Fastest by the fitted surface: {} with {:.0f} tokens/s (polynomial of degree {}, chosen by "
      "leave-one-out error: {:.0f} tokens/s).\n\n",
      setting_text(sweep.keys, predicted.inputs), predicted.value, surface.degree(),
      surface.cross_validation_error());
  std::vector<std::size_t> varied;
  for (std::size_t k = 0; k < surface.axes().size(); ++k) {
    if (surface.axes()[k].measured.size() > 1) {
      varied.push_back(k);
    }
  }
  if (varied.size() >= 2) {
    report.figure(figure_name,
                  fmt::format("Speed over {} and {}", sweep.keys[varied[0]], sweep.keys[varied[1]]),
                  speed_contour(sweep, points, surface, measured, varied[0], varied[1]));
  }
  if (varied.size() > 2) {
    report.text += "The other settings are those of the fastest measured point.\n\n";
  }
}

// Returns the tables.
std::string write_one_sweep(ReportWriter& report, const Sweep& sweep) {
  // The last point has the highest temperature: of greedy ones nothing else is recorded.
  const std::string sampling = sampling_text(*sweep.points.back(), sweep.keys);
  std::string tables = fmt::format(
      "### {}, {}{}{}{}\n\n{}\n{}", sweep.name(), sweep.model,
      shown(json_number(*sweep.points.front(), "n"), ", {:.0f} problems"),
      sampling.empty() ? "" : ", ", sampling, accuracy_table(sweep), speed_tables(sweep));
  report.text += tables;
  const Speeds speeds = measured_speeds(sweep);
  const std::vector<SurfacePoint> points = speeds.points();
  if (points.empty()) {
    report.missing.push_back("speed of " + sweep.name() +
                             ": no setting has a measured speed (evaluate.speed_problems)");
    return tables;
  }
  const std::string figure_name = "sweep_speed_" + file_name_of(sweep.name());
  const auto surface = fitted_surface(report, sweep, points);
  if (surface) {
    write_surface(report, sweep, points, *surface, figure_name);
  } else {
    report.text += "There is no surface to predict from (see the end).\n\n";
  }
  if (const auto key = curve_key(sweep, points)) {
    report.figure(figure_name, "Speed over " + sweep.keys[*key],
                  speed_curve(sweep, speeds, *key, surface ? &*surface : nullptr));
  }
  return tables;
}

// TPF over block size, a line for each task, method and setting of the other keys.
void write_block_size_figure(ReportWriter& report, const std::vector<Sweep>& sweeps) {
  LineChart chart{"Tokens per forward pass over block size", "block size", "TPF", false, {}};
  chart.x_scale = AxisScale::log2;
  chart.y_from_zero = true;
  for (const Sweep& sweep : sweeps) {
    const auto key = std::ranges::find(sweep.keys, kBlockSize);
    if (key == sweep.keys.end()) {
      continue;
    }
    const auto place = static_cast<std::size_t>(key - sweep.keys.begin());
    std::map<std::vector<double>, LineSeries> lines;
    for (const ReportJson* point : sweep.points) {
      std::vector<double> others = sweep.inputs(*point);
      const double block_size = others[place];
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(place));
      LineSeries& line = lines[others];
      std::vector<std::string> names = sweep.keys;
      names.erase(names.begin() + static_cast<std::ptrdiff_t>(place));
      line.name = sweep.name() + (names.empty() ? "" : ", " + setting_text(names, others));
      line.markers = true;
      line.x.push_back(block_size);
      line.y.push_back(json_number(*point, "tpf"));
      line.low.push_back(json_number(*point, "tpf_low"));
      line.high.push_back(json_number(*point, "tpf_high"));
    }
    for (auto& [others, line] : lines) {
      chart.series.push_back(std::move(line));
    }
  }
  if (chart.series.empty()) {
    report.missing.emplace_back("TPF over block size: the sweep does not vary block_size");
    return;
  }
  if (chart.series.size() > kMostLines) {
    report.text += fmt::format("The figure shows the first {} of {} settings.\n\n", kMostLines,
                               chart.series.size());
    chart.series.resize(kMostLines);
  }
  report.figure("tpf_block_size", "Tokens per forward pass over block size, 95 % intervals shaded",
                render_svg(chart));
}

std::string roofline_sentence(const RooflineFit& fit) {
  switch (fit.shape) {
    case RooflineShape::knee:
      return fmt::format(
          "Knee at {:.0f} tokens (95 % interval {:.0f}–{:.0f}): below it a forward pass takes "
          "{:.3g} ms, beyond it {:.3g} ms more for each further 100 tokens. The fit is off by "
          "{:.1f} %.",
          *fit.knee, *fit.knee_low, *fit.knee_high, 1e3 * fit.flat_seconds,
          1e5 * fit.seconds_per_row, 100 * fit.relative_error);
    case RooflineShape::linear:
      return fmt::format(
          "No knee: latency grows from the first token on, {:.3g} ms + {:.3g} ms for each 100 "
          "tokens. The fit is off by {:.1f} %.",
          1e3 * fit.flat_seconds, 1e5 * fit.seconds_per_row, 100 * fit.relative_error);
    case RooflineShape::flat:
      break;
  }
  return fmt::format(
      "No knee: a forward pass takes {:.3g} ms however many tokens were decoded in parallel here.",
      1e3 * fit.flat_seconds);
}

void write_roofline(ReportWriter& report, const ReportJson& rows) {
  std::vector<LatencyPoint> points;
  LineSeries measured{"median, quartiles shaded", {}, {}};
  measured.markers = true;
  TableCells table = {{"tokens in parallel", "ms per forward pass", "quartiles", "tokens/s"}};
  for (const auto& row : rows) {
    const LatencyPoint point{json_number(row, "rows"), json_number(row, "seconds")};
    if (!(point.rows > 0 && point.seconds > 0)) {
      refuse("a row of \"roofline\" has no positive \"rows\" and \"seconds\"");
    }
    points.push_back(point);
    measured.x.push_back(point.rows);
    measured.y.push_back(1e3 * point.seconds);
    measured.low.push_back(1e3 * json_number(row, "seconds_low"));
    measured.high.push_back(1e3 * json_number(row, "seconds_high"));
    table.push_back(
        {fmt::format("{:.0f}", point.rows), fmt::format("{:.3f}", 1e3 * point.seconds),
         shown(measured.low.back(), "{:.3f}") + "–" + shown(measured.high.back(), "{:.3f}"),
         fmt::format("{:.0f}", point.rows / point.seconds)});
  }
  report.text += "## Roofline\n\n";
  if (measured.x.size() < 2) {
    report.missing.emplace_back("knee of the roofline: one point is no curve");
    report.text += markdown_table(table) + "\n";
    return;
  }
  const auto unsteady = std::ranges::count_if(rows, [](const ReportJson& row) {
    return json_number(row, "seconds_high") > kUnsteady * json_number(row, "seconds_low");
  });
  if (unsteady > 0) {
    report.text += fmt::format(
        "**Of {} points {} have quartiles further apart than a factor of {}: the machine was busy "
        "with other work, and the fit is not to be relied on.**\n\n",
        points.size(), unsteady, kUnsteady);
  }
  const RooflineFit fit = fit_roofline(points);
  const auto [first, last] = std::ranges::minmax(measured.x);
  LineSeries fitted{"fit", {}, {}};
  fitted.dashed = true;
  for (int i = 0; i <= kCurveSteps; ++i) {
    fitted.x.push_back(first * std::pow(last / first, static_cast<double>(i) / kCurveSteps));
    fitted.y.push_back(1e3 * fit.seconds(fitted.x.back()));
  }
  LineChart chart{"Latency over tokens decoded in parallel",
                  "tokens in one forward pass",
                  "ms per forward pass",
                  true,
                  {measured, fitted}};
  chart.x_scale = AxisScale::log2;
  if (fit.knee) {
    chart.guides.push_back({*fit.knee, 0, fmt::format("knee at {:.0f}", *fit.knee)});
  }
  report.text += roofline_sentence(fit) + "\n\n";
  report.figure("roofline", "Latency over tokens decoded in parallel", render_svg(chart));
  report.text += markdown_table(table) + "\n";
}

}  // namespace

std::string write_sweep_section(ReportWriter& report, const ReportJson& sweep) {
  std::vector<const ReportJson*> tasks = {&sweep};
  if (sweep.contains(kFurtherTasks)) {
    if (!sweep[kFurtherTasks].is_array()) {
      refuse("\"further_tasks\" is no array");
    }
    for (const auto& task : sweep[kFurtherTasks]) {
      tasks.push_back(&task);
    }
  }
  std::vector<Sweep> sweeps;
  for (const ReportJson* task : tasks) {
    Sweep read = read_sweep(*task);
    if (read.keys.empty() || read.points.empty()) {
      report.missing.push_back("sweep of " + read.name() + ": holds no measured setting");
    } else {
      sweeps.push_back(std::move(read));
    }
  }
  std::string tables;
  if (!sweeps.empty()) {
    report.text += "## Decoding settings\n\n";
    write_block_size_figure(report, sweeps);
    for (const Sweep& one : sweeps) {
      tables += write_one_sweep(report, one);
    }
  }
  const auto roofline = sweep.find("roofline");
  if (roofline != sweep.end() && roofline->is_array() && !roofline->empty()) {
    write_roofline(report, *roofline);
  } else {
    report.missing.emplace_back(
        "roofline: not profiled in this sweep; `jforge sweep --roofline` does");
  }
  return tables;
}

}  // namespace jforge
