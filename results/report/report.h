#pragma once

#include <filesystem>
#include <map>
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

struct ComparedRun {
  /// Directory of a run or of an evaluation's summary.json.
  std::filesystem::path directory;
  /// Key ("train.learning_rate") → value; empty if none was recorded.
  std::map<std::string, std::string> configuration = {};
};

/// Returns `directory`, its evaluation/ or its sweep/, whichever has summary.json; else empty.
[[nodiscard]] std::filesystem::path evaluation_directory_of(const std::filesystem::path& directory);

/// Returns Markdown: differing configuration; accuracy, TPF and tokens/s of common models, tasks
/// and methods, with the interval of the paired difference and McNemar's test over common problems;
/// differing settings; 20 flipped verdicts per method. Pairs models by name, else the only two
/// left. Throws DataError if a directory is neither a run nor an evaluation, or a file is damaged.
[[nodiscard]] std::string compare_runs(const ComparedRun& first, const ComparedRun& second);

}  // namespace jforge
