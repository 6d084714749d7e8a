#pragma once

/// A run's state for Prometheus: metrics.prom in the run directory, in the text format that
/// node_exporter's textfile collector reads.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace jforge {

/// One sample per line, each metric with its HELP and TYPE, labelled with the run directory `run`.
/// `status` is what run.json holds; what it does not hold has no sample.
[[nodiscard]] std::string run_metrics(const std::string& run, const nlohmann::json& status);

/// Replaces metrics.prom: a reader sees the old file or the new one. Throws EnvironmentError.
void write_run_metrics(const std::filesystem::path& run_directory, const nlohmann::json& status);

}  // namespace jforge
