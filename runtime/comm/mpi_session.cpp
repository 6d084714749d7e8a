#include "runtime/comm/mpi_session.h"

#include <fmt/format.h>
#include <strings.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "runtime/comm/mpi_check.h"
#include "runtime/comm/mpi_transport_internal.h"
#include "runtime/error.h"

namespace jforge {

using detail::check;

namespace {
double mpi_limit_seconds() {
  constexpr double kDefaultSeconds = 600;
  const char* const text = std::getenv("JFORGE_MPI_LIMIT_SECONDS");
  if (text == nullptr) {
    return kDefaultSeconds;
  }
  double seconds = 0;
  const char* const end = text + std::strlen(text);
  const auto [read, error] = std::from_chars(text, end, seconds);
  if (error != std::errc() || read != end || !(seconds >= 1)) {
    throw ConfigError("JFORGE_MPI_LIMIT_SECONDS is \"" + std::string(text) +
                      "\": give a number of seconds, at least 1, or unset it");
  }
  return seconds;
}

/// Passive: the job shares its cores, which a spinning wait would take from the awaited ranks.
bool passive_waits_asked_for() {
  const char* const policy = std::getenv("OMP_WAIT_POLICY");
  return policy != nullptr && ::strcasecmp(policy, "passive") == 0;
}
}  // namespace

MpiSession::MpiSession(int* argc, char*** argv) : limit_seconds_(mpi_limit_seconds()) {
  clock_.follow_this_thread();
  clock_.set_deadline(limit_seconds_);
  clock_.enter("start MPI");
  if (rank_from_a_launcher() == nullptr) {
    // Open MPI would start a daemon, which needs ssh, or else share one folder among such programs,
    // which fail if one begins while another ends; and look for networks for 0.2 s.
    ::setenv("OMPI_MCA_ess_singleton_isolated", "true", 0);
    ::setenv("OMPI_MCA_orte_create_session_dirs", "false", 0);
    ::setenv("OMPI_MCA_pml", "ob1", 0);
  }
  int provided = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
    throw EnvironmentError(
        "MPI does not start: run under mpirun or srun, or check the MPI installation");
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    throw EnvironmentError(
        "this MPI offers no MPI_THREAD_MULTIPLE: install an MPI built with thread support");
  }
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  auto handle = std::make_unique<detail::MpiHandle>(MPI_COMM_WORLD);
  // Rank 0 decides, because all ranks must go through a collective in the same way.
  int passive = passive_waits_asked_for() ? 1 : 0;
  check(MPI_Bcast(&passive, 1, MPI_INT, 0, MPI_COMM_WORLD));
  if (passive != 0) {
    handle->wait_politely();
  }
  clock_.set_owner(fmt::format("rank {} ({}, pid {})", handle->rank, host_name(), ::getpid()));
  world_ = Communicator(std::move(handle));
  clock_.enter("run", 0);
}

MpiSession::~MpiSession() = default;

void MpiSession::finalize() {
  expect(world_.has_value(), "MPI is finalized already");
  clock_.enter("end MPI", limit_seconds_);
  world_->barrier();
  world_->close();
  world_.reset();
  check(MPI_Finalize());
  clock_.enter("ended", limit_seconds_);  // mpirun waits for the process to exit.
}

void MpiSession::abort(int exit_code) {
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (started != 0 && ended == 0) {
    if (std::getenv("PMI_RANK") != nullptr) {
      // MPICH's mpirun drops output that it has not read when a rank aborts.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  std::_Exit(exit_code);
}

const char* rank_from_a_launcher() {
  const char* rank = nullptr;
  for (const char* const name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    rank = rank != nullptr ? rank : std::getenv(name);
  }
  return rank;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace jforge
