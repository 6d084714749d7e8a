#pragma once

/// Compares two runs: configuration, results, and whether they differ by more than chance.

#include <filesystem>
#include <map>
#include <string>

namespace jforge {

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
