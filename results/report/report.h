#pragma once

/// The report of a run: report.md, figures/*.svg, and a results.csv beside each summary.json.

#include <filesystem>
#include <string>

namespace jforge {

/// The main tables as plain text with headings; empty if absent.
struct ReportTables {
  std::string evaluation;  ///< Accuracy, TPF and speed by model, task and method.
  std::string sweep;       ///< The same by setting of a sweep.
};

/// Writes the report from the files of `run_directory` that exist: evaluation/summary.json,
/// sweep/sweep.json, metrics files, round-R/generation.json, prompts_import.json and run.json.
/// Lists missing parts at the end. Throws DataError for a damaged file, EnvironmentError if the
/// report cannot be written.
ReportTables write_report(const std::filesystem::path& run_directory);

}  // namespace jforge
