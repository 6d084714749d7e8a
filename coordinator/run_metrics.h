#pragma once

/// metrics.prom of a run directory, for the textfile collector of Prometheus' node_exporter.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace jforge {

/// Returns HELP, TYPE and one sample per metric, labelled with the run directory `run`. Skips
/// metrics that `status` (run.json) lacks.
[[nodiscard]] std::string run_metrics(const std::string& run, const nlohmann::json& status);

/// Replaces metrics.prom atomically. Throws EnvironmentError.
void write_run_metrics(const std::filesystem::path& run_directory, const nlohmann::json& status);

}  // namespace jforge
