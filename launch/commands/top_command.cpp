#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "coordinator/run_journal.h"
#include "coordinator/run_lock.h"
#include "launch/commands/commands.h"
#include "launch/commands/progress_display.h"
#include "launch/commands/terminal.h"
#include "runtime/console.h"
#include "runtime/stop_signal.h"

namespace jforge {

namespace {
constexpr std::chrono::milliseconds kRefresh{500};

template <class T>
std::optional<T> optional_value(const nlohmann::json& status, const char* key) {
  const auto found = status.find(key);
  return found != status.end() && found->is_number() ? std::optional(found->get<T>())
                                                     : std::nullopt;
}

PhaseProgress progress_of(const nlohmann::json& status) {
  return {.phase = status.value("phase", ""),
          .unit = status.value("unit", ""),
          .step = status.value("step", std::int64_t{0}),
          .total = optional_value<std::int64_t>(status, "total"),
          .eta_seconds = optional_value<double>(status, "eta_seconds"),
          .eta_is_bound = status.value("eta_is_bound", false),
          .tokens_per_second = optional_value<double>(status, "tokens_per_second"),
          .detail = status.value("detail", "")};
}

/// Returns "running, attempt 2, 4 ranks, node7, updated …". `dead`: why no job can run.
std::string heading(const nlohmann::json& status, const std::string& dead) {
  return fmt::format("{}{}, attempt {}, {} ranks, {}, updated {}",
                     dead.empty() ? "" : fmt::format("{}; last status ", dead),
                     status.value("status", "?"), status.value("attempt", 0),
                     status.value("ranks", 0), status.value("host", "?"),
                     status.value("updated", "?"));
}

nlohmann::json status_of(const std::filesystem::path& directory) {
  nlohmann::json status = read_run_status(directory);
  if (!status.is_object()) {
    throw DataError(directory.string() +
                    " is no run directory: it has no run.json; give the run.directory of a run");
  }
  return status;
}

std::string cut(const std::string& text, int columns) {
  return text.substr(0, static_cast<std::size_t>(std::max(columns, 2) - 1));
}
}  // namespace

ExitCode top_command(const std::filesystem::path& directory) {
  const Terminal terminal = Terminal::of_standard_output();
  for (bool first = true;; first = false) {
    // First, because a job that ends in between has written its status.
    const std::string lock = why_lock_is_dead(directory);
    const nlohmann::json status = status_of(directory);
    const bool running = status.value("status", "") == "running";
    const std::string dead = running ? lock : "";
    const bool in_phase = status.contains("step");
    if (!terminal) {
      fmt::print("{}\n{}{}\n", heading(status, dead), status.value("phase", ""),
                 in_phase ? ": " + describe(progress_of(status)) : "");
      return ExitCode::ok;
    }
    const int columns = terminal.columns();
    const std::string line =
        in_phase ? bar_line(progress_of(status), columns) : cut(status.value("phase", ""), columns);
    tell(stdout, fmt::format("{}\r\033[K{}\n\033[K{}", first ? "" : "\033[A",
                             cut(heading(status, dead), columns), line));
    if (!running || stop_requested()) {
      tell(stdout, "\n");
      return ExitCode::ok;
    }
    std::this_thread::sleep_for(kRefresh);
  }
}

}  // namespace jforge
