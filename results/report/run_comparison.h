#pragma once

/// Two runs side by side: what was configured differently, what came out differently, and whether
/// the difference is more than chance.

#include <filesystem>
#include <map>
#include <string>

namespace jforge {

/// One side of a comparison.
struct ComparedRun {
  /// A run's directory, or one that holds an evaluation's summary.json.
  std::filesystem::path directory;
  /// Key ("train.learning_rate") → value as text; empty when no configuration was recorded.
  std::map<std::string, std::string> configuration = {};
};

/// Where the summary.json of `directory` lies: in it, in its evaluation/ or its sweep/; empty when
/// nothing was evaluated.
[[nodiscard]] std::filesystem::path evaluation_directory_of(const std::filesystem::path& directory);

/// Markdown: configuration keys that differ; accuracy, TPF and tokens/s of every model, task and
/// method that both have, with the interval of the paired difference and McNemar's test over the
/// problems that both have; their settings that differ; the verdicts that flipped, the first 20 of
/// each method. Models are paired by name; where each side has exactly one left, those two. Throws
/// DataError when a directory is neither a run nor an evaluation, or a file in it is garbled.
[[nodiscard]] std::string compare_runs(const ComparedRun& first, const ComparedRun& second);

}  // namespace jforge
