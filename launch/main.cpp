
#include <fmt/chrono.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "launch/command_line.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/console.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"

namespace {

// Uses rank 0's environment, because mpirun does not pass every variable to other hosts.
void set_up_collective_checks(const jforge::Communicator& world) {
  const char* wanted = std::getenv("JFORGE_CHECK_COLLECTIVES");
  const bool on =
      jforge::broadcast_text(world, wanted == nullptr ? std::string() : wanted, 0) == "1";
  jforge::enable_collective_checks(on);
  if (on) {
    jforge::log_info("collective checks are on");
  }
}

// Knows the end of a Slurm job without --stop-at.
void stop_in_time(std::optional<double> end) {
  const char* const slurm = end ? nullptr : std::getenv("SLURM_JOB_END_TIME");
  if (slurm != nullptr) {
    char* rest = nullptr;
    end = std::strtod(slurm, &rest);
    if (!(*end > jforge::seconds_since_epoch() && *end < 1e11) || *rest != '\0') {
      jforge::log_warn("SLURM_JOB_END_TIME = \"{}\" is ignored: it is not a future time in seconds",
                       slurm);
      return;
    }
  }
  if (end) {
    jforge::log_info(
        "stops by itself at {:%FT%TZ}, in time for {} ({:%FT%TZ}); generation run.stop_seconds and "
        "training a step and a checkpoint earlier",
        fmt::gmtime(static_cast<std::time_t>(jforge::request_stop_at(*end))),
        slurm != nullptr ? "the end of the Slurm job" : "--stop-at",
        fmt::gmtime(static_cast<std::time_t>(*end)));
  }
}

// Returns whether standard output is a closed pipe or a lost terminal.
bool reader_left() {
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&output, 1, 0) > 0 && (output.revents & (POLLERR | POLLHUP)) != 0;
}

// Throws EnvironmentError if output was lost (a full disk) and its reader has not left.
void expect_output_written() {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!written && !reader_left()) {
    throw jforge::EnvironmentError("standard output could not be written");
  }
}

// `jforge inspect RUN | head`: a command that was cut off exits as after SIGPIPE.
constexpr int kReaderLeft = 128 + SIGPIPE;
bool cut_off_by_its_reader(const jforge::MpiSession* session) {
  return session == nullptr && std::ferror(stdout) != 0 && reader_left();
}

// Time that other ranks leave rank 0, which may have files to finish, to report a common failure.
constexpr std::chrono::seconds kReportPatience{10};

int report(const std::exception& error, const jforge::MpiSession* session) {
  const auto* known = dynamic_cast<const jforge::Error*>(&error);
  const jforge::FailureText failure = jforge::describe_failure(error);
  const bool several = session != nullptr && session->world().size() > 1;
  const bool on_all_ranks = known != nullptr && known->on_all_ranks();
  if (session != nullptr) {
    session->clock().enter("report a failure", session->limit_seconds() + kReportPatience.count());
  }
  if (!on_all_ranks || session->world().rank() == 0) {
    const std::string where =
        several && !on_all_ranks
            ? "rank " + std::to_string(session->world().rank()) + " (" + jforge::host_name() + "): "
            : std::string();
    // One write, so that the launcher's lines stay outside.
    jforge::tell(stderr, "jforge: " + where + failure.message + "\n");
  } else {
    // Rank 0 reports and ends the job; this rank only ensures the end.
    std::this_thread::sleep_for(kReportPatience);
  }
  jforge::close_log();
  return static_cast<int>(failure.code);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace jforge;
  open_standard_streams();
  // First, so that a stop during MPI's start counts.
  install_signal_handlers();
  // Before MPI, because a shell waits for this answer.
  if (const std::optional<std::string> candidates = asked_completions(argc, argv)) {
    tell(stdout, *candidates);
    return 0;
  }
  ExitCode exit_code = ExitCode::ok;
  const char* const launched = jforge::rank_from_a_launcher();
  // Rank 0 prints for all, which have the same command line.
  const bool silent = launched != nullptr && launched != std::string_view("0");
  const std::optional<CommandLine> line = parse_command_line(argc, argv, exit_code, silent);
  std::optional<MpiSession> session;
  try {
    if (launched != nullptr || (line && line->distributed)) {
      session.emplace(&argc, &argv);
    }
    const Rank rank = session ? session->world().rank() : 0;
    if (line) {
      initialise_log(rank);
      arm_faults(line->inject, rank);
      if (session) {
        // A distributed command enters its own phases; a single process has no limit.
        session->clock().enter("start", line->distributed ? session->limit_seconds() : 0);
        set_up_collective_checks(session->world());
      }
      if (line->distributed) {
        stop_in_time(line->stop_at);
      }
      if (line->distributed || rank == 0) {
        exit_code = line->run(session ? &*session : nullptr);
      }
      if (session && !line->distributed) {
        session->world().barrier();
      }
    }
    if (exit_code == ExitCode::ok) {
      expect_output_written();
    }
    if (session) {
      fault_point("end");
      session->finalize();
    }
    close_log();
    return static_cast<int>(exit_code);
  } catch (const std::exception& error) {
    if (cut_off_by_its_reader(session ? &*session : nullptr)) {
      close_log();
      return kReaderLeft;
    }
    const int code = report(error, session ? &*session : nullptr);
    if (session && session->world().size() > 1) {
      MpiSession::abort(code);
    }
    return code;
  }
}
