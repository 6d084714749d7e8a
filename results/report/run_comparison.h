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

/// Returns the folder of summary.json: `directory`, or its evaluation/ or sweep/; empty if nothing
/// was evaluated.
[[nodiscard]] std::filesystem::path evaluation_directory_of(const std::filesystem::path& directory);

/// Returns Markdown: configuration keys that differ; accuracy, TPF and tokens/s of common models,
/// tasks and methods, with the paired difference's interval and McNemar's test over common
/// problems; settings that differ; the first 20 flipped verdicts of each method. Pairs models by
/// name, then the two left over if each side has one. Throws DataError if a directory is neither a
/// run nor an evaluation, or a file is damaged.
[[nodiscard]] std::string compare_runs(const ComparedRun& first, const ComparedRun& second);

}  // namespace jforge
