#include "results/report/report.h"

#include <fmt/format.h>

#include "results/report/metrics_reader.h"
#include "results/report/report_sections.h"
#include "results/report/report_text.h"
#include "runtime/durable_file.h"

namespace jforge {

namespace {

// Returns all attempts' steps, each once.
std::string merged_metrics(const std::map<std::int32_t, std::vector<MetricsRow>>& rounds) {
  std::string lines;
  for (const auto& [round, rows] : rounds) {
    for (const MetricsRow& row : rows) {
      lines += ReportJson(row.values).dump() + "\n";
    }
  }
  return lines;
}

void write_overview(ReportWriter& report, const ReportJson& status) {
  TableCells rows = {{"run", ""}};
  for (const auto& [key, value] : status.items()) {
    if (key == "status" || key == "phase") {
      continue;  // valid only while the report is written
    }
    rows.push_back({key, value.is_string() ? value.get<std::string>() : value.dump()});
  }
  report.text += "## Run\n\n" + markdown_table(rows) + "\n";
  if (std::filesystem::exists(report.directory / "resolved_config.toml")) {
    report.text += "Every setting: [resolved_config.toml](resolved_config.toml).\n\n";
  }
}

// Returns whether sweep/ and evaluation/ hold different models of one name.
bool is_of_another_model(const std::filesystem::path& run, const std::string& model) {
  const auto weights = [&](const char* folder) {
    const auto claim = read_json_object(run / folder / model / "model.json");
    return claim ? json_text(*claim, "weights") : std::string();
  };
  const std::string swept = weights("sweep");
  const std::string evaluated = weights("evaluation");
  return !swept.empty() && !evaluated.empty() && swept != evaluated;
}

/// Writes each summary's figures for spreadsheets and data frames.
void write_csv(const std::filesystem::path& run) {
  for (const char* folder : {"evaluation", "sweep"}) {
    if (const auto summary = read_json_object(run / folder / "summary.json")) {
      publish_file(run / folder / "results.csv", results_csv(*summary));
    }
  }
}

ReportTables write_measurements(ReportWriter& report) {
  ReportTables tables;
  if (const auto summary = read_json_object(report.directory / "evaluation" / "summary.json")) {
    if (const std::string first = headline(*summary); !first.empty()) {
      tables.headline = first + "\n\n";
      report.text += tables.headline;
    }
    tables.evaluation = write_evaluation_section(report, *summary);
  }
  const auto sweep = read_json_object(report.directory / "sweep" / "sweep.json");
  if (sweep && is_of_another_model(report.directory, json_text(*sweep, "model"))) {
    report.missing.push_back(
        fmt::format("decoding settings: those in sweep/ are of another model than \"{}\" is now; "
                    "`jforge sweep` under another --name measures this one",
                    json_text(*sweep, "model")));
  } else if (sweep) {
    tables.sweep = write_sweep_section(report, *sweep);
  } else {
    report.missing.emplace_back(
        "decoding settings: no sweep in this run; `jforge sweep` makes one");
  }
  if (tables.evaluation.empty()) {
    report.missing.emplace_back(
        "accuracy and speed of models: `jforge evaluate` measures them; a sweep does for its "
        "settings");
  }
  return tables;
}

void write_training(ReportWriter& report) {
  if (const auto rounds = read_metrics(report.directory); !rounds.empty()) {
    write_training_section(report, rounds);
    publish_file(report.directory / "metrics.jsonl", merged_metrics(rounds));
  } else {
    report.missing.emplace_back("training curves: nothing was trained in this directory");
  }
  write_trajectories_section(report, report.directory);
  if (const auto import = read_json_object(report.directory / "prompts_import.json")) {
    write_prompts_section(report, *import);
  } else {
    report.missing.emplace_back("prompts: nothing was imported in this directory");
  }
}

}  // namespace

ReportTables write_report(const std::filesystem::path& run_directory) {
  ReportWriter report{run_directory};
  report.text =
      "# " + std::filesystem::weakly_canonical(run_directory).filename().string() + "\n\n";
  make_directory(run_directory / "figures");
  ReportTables tables = write_measurements(report);
  write_csv(run_directory);
  write_training(report);
  if (const auto status = read_json_object(run_directory / "run.json")) {
    write_overview(report, *status);
  } else {
    report.missing.emplace_back("run.json: this directory holds measurements alone");
  }
  if (!report.missing.empty()) {
    report.text += "## Not in this report\n\n";
    for (const std::string& part : report.missing) {
      report.text += "- " + part + "\n";
    }
  }
  publish_file(run_directory / "report.md", report.text);
  return tables;
}

}  // namespace jforge
