#include "workers/evaluate/host_programs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <string>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/log.h"
#include "workers/evaluate/sandbox/grading_pool.h"

namespace jforge {

namespace {

int lines_equal_to(const std::string& text, const std::string& line) {
  std::istringstream stream(text);
  int count = 0;
  for (std::string found; std::getline(stream, found);) {
    count += found == line ? 1 : 0;
  }
  return count;
}

/// Of the machine, not of what this rank is bound to: all of its ranks must say the same.
int machine_cores() { return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF))); }

}  // namespace

HostPrograms share_host_programs(const Communicator& comm, int threads) {
  const auto names = gather_texts(comm, host_name(), 0);
  std::random_device random;
  const std::string hosts = broadcast_text(
      comm, fmt::format("{:08x}{:08x}\n{}", random(), random(), fmt::join(names, "\n")), 0);
  const int ranks = lines_equal_to(hosts, host_name());
  HostPrograms programs;
  programs.threads = threads > 0 ? threads : share_of_cores(ranks);
  // Of this job alone, so that no other job's frozen program holds this one up.
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() /
      fmt::format("jforge-turns-{}-{}", getuid(), hosts.substr(0, hosts.find('\n')));
  (void)agree(comm, false, [&] {
    programs.turns = std::make_unique<HostTurns>(
        path, std::max(machine_cores(), threads > 0 ? ranks * threads : 0));
  });
  // All ranks have it open now.
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return programs;
}

}  // namespace jforge
