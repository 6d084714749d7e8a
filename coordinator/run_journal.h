#pragma once

/// journal.jsonl: one JSON line per event, for people; shards and manifests are the state.

#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/append_log.h"

namespace jforge {

class RunJournal {
 public:
  explicit RunJournal(const std::filesystem::path& run_directory);
  /// Thread-safe. Adds "time" (UTC, ISO 8601) and "event", replaces invalid UTF-8 and seals the
  /// line.
  void record(std::string_view event, const nlohmann::json& details = nlohmann::json::object());

 private:
  std::mutex mutex_;
  AppendLog log_;
};

/// Durably publishes run.json (results/README.md), sealed; replaces invalid UTF-8.
void write_run_status(const std::filesystem::path& run_directory, const nlohmann::json& status);
/// Replaces run.json atomically, not durably: a machine crash may lose it.
void show_run_status(const std::filesystem::path& run_directory, const nlohmann::json& status);
/// Returns the last status, or null. Throws DataError naming a damaged file.
[[nodiscard]] nlohmann::json read_run_status(const std::filesystem::path& run_directory);

/// "2025-01-31T12:00:00Z"
[[nodiscard]] std::string utc_now();

// metrics.prom of a run directory, for the textfile collector of Prometheus' node_exporter.

/// One sample, with HELP and TYPE, per metric that `status` (run.json) has, labelled with `run`.
[[nodiscard]] std::string run_metrics(const std::string& run, const nlohmann::json& status);

/// Replaces metrics.prom atomically. Throws EnvironmentError.
void write_run_metrics(const std::filesystem::path& run_directory, const nlohmann::json& status);

}  // namespace jforge
