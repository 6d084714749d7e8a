#pragma once

/// How busy a machine is, and how fast its clock runs: what makes a measured speed mean little.

#include <filesystem>
#include <optional>

namespace jforge {

struct MachineLoad {
  /// Load average of the last minute over the number of cores; a machine that does nothing but this
  /// job has at most about 1.
  std::optional<double> load_per_core;
  std::optional<double> megahertz;  ///< Mean over the cores.
};

/// Of this host, as /proc/loadavg and /proc/cpuinfo have it; what they do not say is left out.
[[nodiscard]] MachineLoad read_machine_load(const std::filesystem::path& proc = "/proc");

}  // namespace jforge
