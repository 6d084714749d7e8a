#pragma once

/// Reads the step metrics of a run back: each attempt writes its own metrics.ATTEMPT.jsonl, and
/// with its first step what earlier attempts made from there on is void: it was made again, or
/// belongs to a branch that was left.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace jforge {

/// One training step as logged.
struct MetricsRow {
  std::int64_t step = 0;
  std::map<std::string, double>
      values;  ///< "loss", "consistency", "autoregressive", "learning_rate", …
};

/// "metrics.3.jsonl" → 3; anything else → −1.
[[nodiscard]] int metrics_attempt(const std::string& file_name);

/// Rows of each round in ascending step. A torn last line is ignored; any other bad line (a
/// broken seal among them) is a DataError with file and line.
[[nodiscard]] std::map<std::int32_t, std::vector<MetricsRow>> read_metrics(
    const std::filesystem::path& run_directory);

}  // namespace jforge
