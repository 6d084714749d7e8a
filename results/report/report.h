#pragma once

/// The report of a run: report.md with tables and SVG figures, from what the run directory holds.
/// Writes `report.md`, `figures/*.svg`, and a `results.csv` beside each summary.json.

#include <filesystem>
#include <string>

namespace jforge {

/// A report's main tables as plain text, with their headings; empty where there are none.
struct ReportTables {
  std::string evaluation;  ///< Accuracy, TPF and speed of each model, task and method.
  std::string sweep;       ///< The same of each setting of a sweep.
};

/// Builds the report from `run_directory`: evaluation/summary.json (accuracy, TPF and speed,
/// ablation, how it was measured), sweep/sweep.json (settings, surface, roofline), metrics files
/// (losses), round-R/generation.json, prompts_import.json and run.json, each if present; what is
/// not there is listed at the end. Throws DataError for a file that is there but garbled,
/// EnvironmentError when the report cannot be written.
ReportTables write_report(const std::filesystem::path& run_directory);

}  // namespace jforge
