#pragma once

/// The parts of a report.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "results/report/metrics_reader.h"
#include "results/report/report_text.h"

namespace jforge {

void write_training_section(ReportWriter& report,
                            const std::map<std::int32_t, std::vector<MetricsRow>>& rounds);
/// Reads round-R/generation.json. Throws DataError if one is damaged.
void write_trajectories_section(ReportWriter& report, const std::filesystem::path& run_directory);
/// `import`: prompts_import.json.
void write_prompts_section(ReportWriter& report, const ReportJson& import);

/// The untrained model in summaries; its greedy decoding is the reference of speed-ups.
inline constexpr const char* kBaseModel = "base";
inline constexpr const char* kReferenceMethod = "ar";

/// A method's results on a task. `figures` points into the summary.
struct Measured {
  std::string task;
  std::string model;
  std::string method;
  const ReportJson* figures;

  [[nodiscard]] double number(const char* key) const { return json_number(*figures, key); }
};

/// Returns all figures of a summary.json, grouped by task, else in the file's order. Throws
/// DataError if "models" is malformed.
[[nodiscard]] std::vector<Measured> all_figures(const ReportJson& summary);

/// Returns the tables of accuracy and speed; empty without models. Throws like all_figures().
std::string write_evaluation_section(ReportWriter& report, const ReportJson& summary);

/// `sweep`: {"model", "task", "method", "keys", "baseline", "points": [{"settings", figures …}],
/// "further_tasks": [such objects]}, the last optional (results/README.md). Adds absent parts to
/// `report.missing`. Returns each task's settings by tokens per second, and the fastest. Throws
/// DataError if a part is malformed.
std::string write_sweep_section(ReportWriter& report, const ReportJson& sweep);

/// Returns two sentences per task of evaluation/summary.json, what was gained and what it cost:
/// figures of model "final", or of the only one, compared with "base", by the method that is the
/// fastest at the smallest batch or, without speeds, has the highest TPF. Empty without such a
/// method.
[[nodiscard]] std::string headline(const ReportJson& summary);

/// Returns a summary.json as CSV (RFC 4180): a header, then a row per model, task and method.
/// Columns are figures in order of first occurrence, nested ones by path
/// ("speed.0.tokens_per_second"). Missing and null figures are empty. Throws like all_figures().
[[nodiscard]] std::string results_csv(const ReportJson& summary);

}  // namespace jforge
