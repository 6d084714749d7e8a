#pragma once

/// What a measured speed depends on: the processor, how busy it is and how fast its clock runs.

#include <filesystem>
#include <optional>
#include <string>

namespace jforge {

struct MachineLoad {
  /// Load average of the last minute over the number of cores; a machine that does nothing but this
  /// job has at most about 1.
  std::optional<double> load_per_core;
  std::optional<double> megahertz;  ///< Mean over the cores.
};

/// Of this host, as /proc/loadavg and /proc/cpuinfo have it; what they do not say is left out.
[[nodiscard]] MachineLoad read_machine_load(const std::filesystem::path& proc = "/proc");
/// The processor's name as /proc/cpuinfo has it; "unknown processor" where it has none.
[[nodiscard]] std::string processor_name(const std::filesystem::path& proc = "/proc");

}  // namespace jforge
