#pragma once

/// metrics.prom of a run directory, for the textfile collector of Prometheus' node_exporter.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace jforge {

/// One sample, with HELP and TYPE, per metric that `status` (run.json) has, labelled with `run`.
[[nodiscard]] std::string run_metrics(const std::string& run, const nlohmann::json& status);

/// Replaces metrics.prom atomically. Throws EnvironmentError.
void write_run_metrics(const std::filesystem::path& run_directory, const nlohmann::json& status);

}  // namespace jforge
