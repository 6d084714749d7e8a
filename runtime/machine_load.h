#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace jforge {

struct MachineLoad {
  /// Load average of the last minute per core; at most about 1 if only this job runs.
  std::optional<double> load_per_core;
  std::optional<double> megahertz;  ///< Mean over the cores.
};

/// Reads /proc/loadavg and /proc/cpuinfo; missing values stay empty.
[[nodiscard]] MachineLoad read_machine_load(const std::filesystem::path& proc = "/proc");
/// From /proc/cpuinfo, or "unknown processor".
[[nodiscard]] std::string processor_name(const std::filesystem::path& proc = "/proc");

}  // namespace jforge
