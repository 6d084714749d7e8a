#pragma once

#include <filesystem>
#include <string>

namespace jforge {

/// Main tables as plain text; empty if absent.
struct ReportTables {
  std::string headline;    ///< A paragraph, or empty.
  std::string evaluation;  ///< By model, task and method.
  std::string sweep;       ///< By setting.
};

/// Writes report.md, figures/*.svg and results.csv beside each summary.json, from
/// evaluation/summary.json, sweep/sweep.json, metrics files, round-R/generation.json,
/// prompts_import.json and run.json, if present. Missing parts are listed at the end. Throws
/// DataError for a damaged file, EnvironmentError if the report cannot be written.
ReportTables write_report(const std::filesystem::path& run_directory);

}  // namespace jforge
