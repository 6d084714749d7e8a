#include "runtime/machine_load.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <string>

namespace jforge {

MachineLoad read_machine_load(const std::filesystem::path& proc) {
  MachineLoad load;
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  double average = 0;
  if (std::ifstream(proc / "loadavg") >> average && std::isfinite(average) && cores > 0) {
    load.load_per_core = average / static_cast<double>(cores);
  }
  std::ifstream info(proc / "cpuinfo");
  double sum = 0;
  int clocks = 0;
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("cpu MHz")) {
      continue;
    }
    const double clock = std::strtod(line.c_str() + line.find(':') + 1, nullptr);
    if (clock > 0 && std::isfinite(clock)) {
      sum += clock;
      clocks += 1;
    }
  }
  if (clocks > 0) {
    load.megahertz = sum / clocks;
  }
  return load;
}

std::string processor_name(const std::filesystem::path& proc) {
  std::ifstream info(proc / "cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

}  // namespace jforge
