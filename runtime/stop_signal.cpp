#include "runtime/stop_signal.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <limits>

#include "runtime/file_mapping.h"

namespace jforge {

namespace {
std::atomic<bool> stop_flag{false};
std::atomic<int> ending_signals{0};
constexpr double kNever = std::numeric_limits<double>::infinity();
std::atomic<double> stop_end{kNever};
std::atomic<double> stop_earliest{kNever};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "signal handlers may use lock-free atomics only");

void ask_to_stop(int /*signal*/) { stop_flag.store(true); }

void ask_to_stop_or_end(int signal) {
  stop_flag.store(true);
  if (ending_signals.fetch_add(1) > 0) {
    // The default action, taken after the return, shows the parent the true cause.
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

void install(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}
}  // namespace

void install_signal_handlers() {
  install(SIGUSR1, ask_to_stop);  // MPICH's mpirun passes on no SIGUSR2
  install(SIGUSR2, ask_to_stop);
  install(SIGTERM, ask_to_stop_or_end);
  install(SIGINT, ask_to_stop_or_end);
  install(SIGPIPE, SIG_IGN);
  install(SIGXFSZ, SIG_IGN);
  end_where_a_mapping_is_lost();
}

bool stop_requested(double lead_seconds) noexcept {
  if (stop_flag.load() || stop_end.load() == kNever) {
    return stop_flag.load();
  }
  return seconds_since_epoch() >= stop_earliest.load() && seconds_to_stop() <= lead_seconds;
}

double request_stop_at(double end, double begin) noexcept {
  stop_earliest.store((begin + end) / 2);
  stop_end.store(end);
  return std::max((begin + end) / 2, end - kStopMarginSeconds);
}

double seconds_to_stop() noexcept {
  return stop_end.load() - kStopMarginSeconds - seconds_since_epoch();
}

double seconds_since_epoch() noexcept {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void request_stop() noexcept { stop_flag.store(true); }

void clear_stop_request() noexcept {
  stop_flag.store(false);
  stop_end.store(kNever);
  ending_signals.store(0);
}

}  // namespace jforge
