#include "workers/evaluate/host_programs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/local_rank.h"
#include "runtime/comm/mpi_session.h"
#include "workers/evaluate/sandbox/grading_pool.h"

namespace jforge {

namespace {

/// Ignores affinity: all ranks of a machine must agree.
int machine_cores() { return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF))); }

}  // namespace

HostPrograms share_host_programs(const Communicator& comm, int threads) {
  const int ranks = ranks_on_host(comm);
  std::random_device random;
  const std::string nonce =
      broadcast_text(comm, fmt::format("{:08x}{:08x}", random(), random()), 0);
  HostPrograms programs;
  programs.threads = threads > 0 ? threads : share_of_cores(ranks);
  // Per job and host: other jobs must not block this one, and hosts may share the folder.
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() /
      fmt::format("jforge-turns-{}-{}-{}", getuid(), nonce, host_name());
  together(comm, [&] {
    programs.turns = std::make_unique<HostTurns>(
        path, std::max(machine_cores(), threads > 0 ? ranks * threads : 0));
  });
  // All ranks have it open.
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return programs;
}

}  // namespace jforge
