#pragma once

/// The report of a run: report.md with tables and SVG figures, from what the run directory holds.
/// Writes `report.md` and `figures/*.svg`.

#include <filesystem>
#include <string>

namespace jforge {

/// Builds the report from `run_directory`: run.json, metrics files, rounds/…/generation.json,
/// prompts_import.json and evaluation/summary.json, each if present. Returns the main table as
/// plain text. Throws DataError for a file that is there but garbled, EnvironmentError when the
/// report cannot be written.
std::string write_report(const std::filesystem::path& run_directory);

}  // namespace jforge
