#include "results/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "results/report/metrics_reader.h"
#include "results/report/svg_plot.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;
using Cells = std::vector<std::vector<std::string>>;

std::optional<Json> read_json(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  Json json = Json::parse(read_file(path), nullptr, false);
  if (json.is_discarded()) {
    throw DataError(path.string() + " is not JSON; remove it and run the phase again");
  }
  return json;
}

// A Markdown table whose columns line up, so that it reads well as plain text too.
std::string table(const Cells& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 3);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      text += fmt::format("| {:<{}} ", rows[r][i], widths[i]);
    }
    text += "|\n";
    if (r == 0) {
      for (const std::size_t width : widths) {
        text += "|" + std::string(width + 2, '-');
      }
      text += "|\n";
    }
  }
  return text;
}

double number(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>()
                                               : std::numeric_limits<double>::quiet_NaN();
}

std::string shown(double value, const char* format) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "–";
}

// One row per model, task and method.
std::string evaluation_table(const Json& models) {
  Cells rows = {
      {"model", "task", "method", "accuracy", "TPF", "tokens/s", "speed-up over AR", "problems"}};
  for (const auto& [model, tasks] : models.items()) {
    for (const auto& [task, methods] : tasks.items()) {
      const double ar = methods.contains("ar") ? number(methods["ar"], "tokens_per_second")
                                               : std::numeric_limits<double>::quiet_NaN();
      for (const auto& [method, result] : methods.items()) {
        rows.push_back({model, task, method, shown(100 * number(result, "accuracy"), "{:.1f} %"),
                        shown(number(result, "tpf"), "{:.2f}"),
                        shown(number(result, "tokens_per_second"), "{:.0f}"),
                        shown(number(result, "tokens_per_second") / ar, "{:.2f}×"),
                        shown(number(result, "n"), "{:.0f}")});
      }
    }
  }
  return table(rows);
}

struct ReportWriter {
  std::filesystem::path directory;
  std::string text;

  void figure(const std::string& name, const std::string& caption, const std::string& svg) {
    publish_file(directory / "figures" / (name + ".svg"), svg);
    text += fmt::format("![{}](figures/{}.svg)\n\n", caption, name);
  }
};

void write_overview(ReportWriter& report, const Json& status) {
  Cells rows = {{"run", ""}};
  for (const auto& [key, value] : status.items()) {
    if (key == "status" || key == "phase") {
      continue;  // of the moment in which the report is written
    }
    rows.push_back({key, value.is_string() ? value.get<std::string>() : value.dump()});
  }
  report.text += table(rows) + "\n";
}

std::string write_evaluation(ReportWriter& report, const Json& summary) {
  if (!summary.contains("models") || summary["models"].empty()) {
    return {};
  }
  const Json& models = summary["models"];
  const std::string main_table = evaluation_table(models);
  report.text += "## Accuracy and speed\n\n" + main_table +
                 "\nTPF = generated tokens / forward passes, prefill excluded (sum over all "
                 "problems). Tokens per "
                 "second exclude prefill.\n\n";
  BarChart chart{"Tokens per forward pass", "TPF", {}, {}, {}};
  // Groups are task × method, series are models, so that before and after stand side by side.
  for (const auto& [model, tasks] : models.items()) {
    chart.series.push_back(model);
    for (const auto& [task, methods] : tasks.items()) {
      for (const auto& [method, result] : methods.items()) {
        const std::string group = task + " " + method;
        if (std::ranges::find(chart.groups, group) == chart.groups.end()) {
          chart.groups.push_back(group);
        }
      }
    }
  }
  for (const auto& [model, tasks] : models.items()) {
    std::vector<double> values(chart.groups.size(), std::numeric_limits<double>::quiet_NaN());
    for (const auto& [task, methods] : tasks.items()) {
      for (const auto& [method, result] : methods.items()) {
        const auto group =
            std::ranges::find(chart.groups, task + " " + method) - chart.groups.begin();
        values[static_cast<std::size_t>(group)] = number(result, "tpf");
      }
    }
    chart.values.push_back(std::move(values));
  }
  report.figure("tpf", "Tokens per forward pass before and after", render_svg(chart));
  return main_table;
}

void write_training(ReportWriter& report,
                    const std::map<std::int32_t, std::vector<MetricsRow>>& rounds) {
  report.text += "## Training\n\n";
  Cells rows = {{"round", "steps", "consistency loss, first → last", "AR loss, first → last",
                 "median tokens/s"}};
  LineChart consistency{
      "Consistency loss", "step", "KL(teacher ‖ student) per kept token", true, {}};
  LineChart autoregressive{"Autoregressive loss", "step", "cross-entropy per target", true, {}};
  for (const auto& [round, steps] : rounds) {
    const auto column = [&](const char* key) {
      std::vector<double> values;
      for (const MetricsRow& row : steps) {
        const auto it = row.values.find(key);
        values.push_back(it == row.values.end() ? std::numeric_limits<double>::quiet_NaN()
                                                : it->second);
      }
      return values;
    };
    std::vector<double> x;
    for (const MetricsRow& row : steps) {
      x.push_back(static_cast<double>(row.step));
    }
    const std::vector<double> kl = column("consistency");
    const std::vector<double> ce = column("autoregressive");
    std::vector<double> speed = column("tokens_per_second");
    std::ranges::nth_element(speed, speed.begin() + static_cast<std::ptrdiff_t>(speed.size() / 2));
    rows.push_back({std::to_string(round), std::to_string(steps.size()),
                    fmt::format("{:.4f} → {:.4f}", kl.front(), kl.back()),
                    fmt::format("{:.4f} → {:.4f}", ce.front(), ce.back()),
                    shown(speed[speed.size() / 2], "{:.0f}")});
    const std::string name = "round " + std::to_string(round);
    consistency.series.push_back({name, x, kl});
    autoregressive.series.push_back({name, x, ce});
  }
  report.text += table(rows) + "\n";
  report.figure("loss_consistency", "Consistency loss over steps", render_svg(consistency));
  report.figure("loss_autoregressive", "Autoregressive loss over steps",
                render_svg(autoregressive));
}

// All attempts' steps in one file, each step once.
std::string merged_metrics(const std::map<std::int32_t, std::vector<MetricsRow>>& rounds) {
  std::string lines;
  for (const auto& [round, rows] : rounds) {
    for (const MetricsRow& row : rows) {
      lines += Json(row.values).dump() + "\n";
    }
  }
  return lines;
}

void write_generation(ReportWriter& report, const std::filesystem::path& run_directory) {
  Cells rows = {{"round", "block size", "prompts", "tokens", "TPF", "tokens/s", "flipped blocks"}};
  for (int round = 1;; ++round) {
    const auto json = read_json(run_directory / fmt::format("round-{}", round) / "generation.json");
    if (!json) {
      break;
    }
    rows.push_back({std::to_string(round), shown(number(*json, "block_size"), "{:.0f}"),
                    shown(number(*json, "prompts"), "{:.0f}"),
                    shown(number(*json, "tokens"), "{:.0f}"), shown(number(*json, "tpf"), "{:.2f}"),
                    shown(number(*json, "tokens_per_second"), "{:.0f}"),
                    shown(number(*json, "flipped_blocks"), "{:.0f}")});
  }
  if (rows.size() > 1) {
    report.text += "## Trajectories\n\n" + table(rows) + "\n";
  }
}

void write_prompts(ReportWriter& report, const Json& import) {
  Cells rows = {{"rule", "dropped"}};
  for (const auto& rule : import.value("dropped", Json::array())) {
    rows.push_back({rule.value("rule", ""), shown(number(rule, "count"), "{:.0f}")});
  }
  report.text +=
      fmt::format("## Prompts\n\n{} read, {} kept.\n\n", shown(number(import, "records"), "{:.0f}"),
                  shown(number(import, "kept"), "{:.0f}"));
  if (rows.size() > 1) {
    report.text += table(rows) + "\n";
  }
}

}  // namespace

std::string write_report(const std::filesystem::path& run_directory) {
  ReportWriter report{run_directory,
                      "# " + std::filesystem::absolute(run_directory).filename().string() + "\n\n"};
  make_directory(run_directory / "figures");
  std::string main_table;
  if (const auto summary = read_json(run_directory / "evaluation" / "summary.json")) {
    main_table = write_evaluation(report, *summary);
  }
  if (const auto rounds = read_metrics(run_directory); !rounds.empty()) {
    write_training(report, rounds);
    publish_file(run_directory / "metrics.jsonl", merged_metrics(rounds));
  }
  write_generation(report, run_directory);
  if (const auto import = read_json(run_directory / "prompts_import.json")) {
    write_prompts(report, *import);
  }
  if (const auto status = read_json(run_directory / "run.json")) {
    report.text += "## Run\n\n";
    write_overview(report, *status);
  }
  publish_file(run_directory / "report.md", report.text);
  return main_table;
}

}  // namespace jforge
