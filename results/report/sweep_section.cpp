#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>

#include "results/report/chart.h"
#include "results/report/recorded_settings.h"
#include "results/report/report_sections.h"
#include "results/report/speed_figures.h"
#include "runtime/error.h"

namespace jforge {

namespace {

constexpr const char* kSpeed = "tokens_per_second";
// Batch size of figures: parallel decoding gains most.
constexpr double kBatch = 1;
constexpr const char* kFurtherTasks = "further_tasks";
constexpr const char* kBlockSize = "block_size";
// As many as colours.
constexpr std::size_t kMaxLines = 7;

[[noreturn]] void refuse(const std::string& what) {
  throw DataError("sweep/sweep.json: " + what + "; sweep again");
}

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
  // Returns the points' figures, then the baseline's.
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

// Returns the settings or, for the baseline, "AR" and those that decide its tokens.
std::vector<std::string> row_names(const Sweep& sweep, const ReportJson& figures) {
  std::vector<std::string> names;
  if (&figures != &sweep.baseline) {
    for (const double value : sweep.inputs(figures)) {
      names.push_back(fmt::format("{:.4g}", value));
    }
    return names;
  }
  for (const std::string& key : sweep.keys) {
    const auto is_key = [&](const auto& setting) { return setting.first == key; };
    names.push_back(std::ranges::any_of(kSamplingSettings, is_key) ? recorded_setting(figures, key)
                                                                   : "–");
  }
  names[0] = names[0] == "–" ? "AR" : "AR, " + names[0];
  return names;
}

// Returns all settings and the baseline, fastest at the smallest batch first.
std::string settings_table(const Sweep& sweep) {
  std::vector<const ReportJson*> sorted = sweep.all_figures();
  const std::vector<double> batches = speed_batches(sorted);
  std::ranges::stable_sort(sorted, std::greater<>(), [&](const ReportJson* figures) {
    const ReportJson* const speed = batches.empty() ? nullptr : speed_at(*figures, batches.front());
    const double value = speed != nullptr ? json_number(*speed, kSpeed) : std::nan("");
    return std::isfinite(value) ? value : -1;
  });
  TableCells rows = {sweep.keys};
  for (const double batch : batches) {
    rows[0].push_back(fmt::format("tokens/s, batch {:.0f}", batch));
    rows[0].push_back(fmt::format("over AR, batch {:.0f}", batch));
  }
  rows[0].insert(rows[0].end(), {"TPF", "accuracy, %", "≠ AR"});
  for (const ReportJson* figures : sorted) {
    std::vector<std::string>& row = rows.emplace_back(row_names(sweep, *figures));
    for (const double batch : batches) {
      const ReportJson* const speed = speed_at(*figures, batch);
      row.push_back(with_interval(speed, kSpeed, "{:.0f}"));
      row.push_back(with_interval(speed, "speed_up", "{:.2f}", "×"));
    }
    const auto percent = [&](const char* key) {
      return shown(100 * json_number(*figures, key), "{:.1f}");
    };
    row.push_back(with_interval(figures, "tpf", "{:.2f}"));
    row.push_back(fmt::format("{} ({}–{})", percent("accuracy"), percent("accuracy_low"),
                              percent("accuracy_high")));
    row.push_back(figures == &sweep.baseline
                      ? "–"
                      : shown(json_number(*figures, "disagreements_with_ar"), "{:.0f}"));
  }
  return markdown_table(rows, sweep.keys.size()) +
         "\nTPF: tokens per forward pass. ≠ AR: problems whose tokens differ from those of AR. In "
         "brackets: 95 % intervals.\n";
}

// Names the fastest settings per batch size, with doubts about speeds.
std::string fastest_settings(const Sweep& sweep) {
  const NamedFigures baseline{"AR", sweep.baseline.is_object() ? &sweep.baseline : nullptr};
  std::vector<NamedFigures> settings;
  for (const ReportJson* point : sweep.points) {
    settings.push_back({setting_text(sweep.keys, sweep.inputs(*point)), point});
  }
  std::string text;
  for (const double batch : speed_batches(sweep.all_figures())) {
    if (const std::string fastest = fastest_by_clock(baseline, settings, batch); !fastest.empty()) {
      text += fmt::format("Fastest by the clock at batch {:.0f}: {}.\n\n", batch, fastest);
    }
  }
  return text + speed_remarks(sweep.all_figures());
}

// Returns a line over setting `key` for each setting of the others. `figures_of` returns the object
// that has `value`, or null.
template <class FiguresOf>
std::vector<ChartSeries> lines_over(const Sweep& sweep, std::ptrdiff_t key,
                                    const std::string& value, const FiguresOf& figures_of) {
  std::vector<std::string> names = sweep.keys;
  names.erase(names.begin() + key);
  std::map<std::vector<double>, ChartSeries> lines;
  for (const ReportJson* point : sweep.points) {
    const ReportJson* const figures = figures_of(*point);
    if (figures == nullptr) {
      continue;
    }
    std::vector<double> others = sweep.inputs(*point);
    others.erase(others.begin() + key);
    ChartSeries& line = lines[others];
    line.name = sweep.name() + (names.empty() ? "" : ", " + setting_text(names, others));
    line.dots = true;
    line.x.push_back(json_number((*point)["settings"], sweep.keys[static_cast<std::size_t>(key)]));
    line.y.push_back(json_number(*figures, value));
    line.low.push_back(json_number(*figures, value + "_low"));
    line.high.push_back(json_number(*figures, value + "_high"));
  }
  std::vector<ChartSeries> result;
  for (auto& [others, line] : lines) {
    result.push_back(std::move(line));
  }
  return result;
}

// Keeps the lines that reach highest.
void limit_lines(ReportWriter& report, Chart& chart) {
  if (chart.series.size() > kMaxLines) {
    report.text += fmt::format("The figure shows the highest {} of {} settings.\n\n", kMaxLines,
                               chart.series.size());
    std::ranges::stable_sort(chart.series, std::greater<>(), [](const ChartSeries& line) {
      return std::accumulate(line.y.begin(), line.y.end(), 0.0,
                             [](double a, double b) { return std::fmax(a, b); });
    });
    chart.series.resize(kMaxLines);
  }
}

// Returns null without a speed at batch 1.
const ReportJson* measured_speed(const ReportJson& figures) {
  const ReportJson* const speed = speed_at(figures, kBatch);
  return speed != nullptr && std::isfinite(json_number(*speed, kSpeed)) ? speed : nullptr;
}

// Plots speed over the first key that varies, and AR's.
void write_speed_figure(ReportWriter& report, const Sweep& sweep) {
  const auto varies = [&](std::size_t key) {
    return std::ranges::any_of(sweep.points, [&](const ReportJson* point) {
      return sweep.inputs(*point)[key] != sweep.inputs(*sweep.points.front())[key];
    });
  };
  std::size_t key = 0;
  while (key + 1 < sweep.keys.size() && !varies(key)) {
    ++key;
  }
  Chart chart{
      .title = "Speed of " + sweep.name(),
      .x = {setting_name(sweep.keys[key]), sweep.keys[key] == kBlockSize},
      .y = {"tokens per second at batch 1, without prefill", false, true},
      .series = lines_over(sweep, static_cast<std::ptrdiff_t>(key), kSpeed, measured_speed)};
  if (chart.series.empty()) {
    report.missing.push_back("speed of " + sweep.name() +
                             ": no setting has a measured speed (evaluate.speed_problems)");
    return;
  }
  limit_lines(report, chart);
  if (const ReportJson* const ar = measured_speed(sweep.baseline)) {
    const double speed = json_number(*ar, kSpeed);
    const auto& x = chart.series.front().x;
    chart.series.push_back({"AR", {x.front(), x.back()}, {speed, speed}});
  }
  report.figure("sweep_speed_" + file_name_of(sweep.name()),
                "Speed over " + sweep.keys[key] + ", with 95 % intervals", render_svg(chart));
}

std::string write_one_sweep(ReportWriter& report, const Sweep& sweep) {
  // The last point has the highest temperature; greedy points record nothing else.
  const std::string sampling = sampling_text(*sweep.points.back(), sweep.keys);
  std::string tables = fmt::format(
      "### {}, {}{}{}{}\n\n{}\n{}", sweep.name(), sweep.model,
      shown(json_number(*sweep.points.front(), "n"), ", {:.0f} problems"),
      sampling.empty() ? "" : ", ", sampling, settings_table(sweep), fastest_settings(sweep));
  report.text += tables;
  write_speed_figure(report, sweep);
  return tables;
}

// Plots a line per task, method and setting of the other keys.
void write_block_size_figure(ReportWriter& report, const std::vector<Sweep>& sweeps) {
  Chart chart{.title = "Tokens per forward pass over block size",
              .x = {"block size", true},
              .y = {"tokens per forward pass", false, true}};
  for (const Sweep& sweep : sweeps) {
    const auto key = std::ranges::find(sweep.keys, kBlockSize);
    if (key == sweep.keys.end()) {
      continue;
    }
    std::ranges::move(lines_over(sweep, key - sweep.keys.begin(), "tpf",
                                 [](const ReportJson& point) { return &point; }),
                      std::back_inserter(chart.series));
  }
  if (chart.series.empty()) {
    report.missing.emplace_back("TPF over block size: the sweep does not vary block_size");
    return;
  }
  limit_lines(report, chart);
  report.figure("tpf_block_size", "Tokens per forward pass over block size, with 95 % intervals",
                render_svg(chart));
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
  return tables;
}

}  // namespace jforge
