#pragma once

/// Reads a run's step metrics. The first step of an attempt's metrics.ATTEMPT.jsonl voids later
/// steps of earlier attempts, which were repeated or abandoned.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace jforge {

struct MetricsRow {
  std::int64_t step = 0;
  std::map<std::string, double>
      values;  ///< "loss", "consistency", "autoregressive", "learning_rate", …
};

/// Returns 3 for "metrics.3.jsonl", −1 for other names.
[[nodiscard]] int metrics_attempt(const std::string& file_name);

/// Returns each round's rows by step. Ignores a torn last line; throws DataError with file and line
/// for any other bad line.
[[nodiscard]] std::map<std::int32_t, std::vector<MetricsRow>> read_metrics(
    const std::filesystem::path& run_directory);

}  // namespace jforge
