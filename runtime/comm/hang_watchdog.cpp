#include "runtime/comm/hang_watchdog.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/error.h"
#include "runtime/log.h"

namespace jforge {

namespace {
/// Guards watched().
std::mutex watched_mutex;
std::vector<const std::function<void()>*>& watched() {
  static std::vector<const std::function<void()>*> all;
  return all;
}

void look_for_errors() {
  const std::lock_guard lock(watched_mutex);
  for (const std::function<void()>* look : watched()) {
    (*look)();
  }
}

/// Returns the sleep between looks: a quarter of the deadline, between 5 and 250 ms.
double poll_seconds(double deadline_seconds) {
  return deadline_seconds > 0 ? std::clamp(deadline_seconds / 4, 0.005, 0.25) : 0.25;
}

std::string describe_hang(const PhaseClock::Reading& reading) {
  if (reading.waiting) {
    return fmt::format(
        "hang: {} waits for other ranks in phase \"{}\" (step {}); no rank shows progress for "
        "{:.1f} s, the limit of a rank that waits is {:.1f} s",
        reading.owner, reading.phase, reading.step, reading.age_seconds, reading.limit_seconds());
  }
  return fmt::format(
      "hang: {} stands still in phase \"{}\" (step {}); it shows no progress for {:.1f} s, its "
      "limit is {:.1f} s",
      reading.owner, reading.phase, reading.step, reading.age_seconds, reading.limit_seconds());
}

[[noreturn]] void end_process(const PhaseClock::Reading& reading) {
  const std::string message = describe_hang(reading) + "; ending this process with code 70";
  // The hung thread may hold the log's lock (a dead network disk), so the log gets two seconds.
  std::promise<void> written;
  auto done = written.get_future();
  try {
    std::thread([&] {
      if (const auto logger = spdlog::default_logger()) {  // not after close_log()
        logger->critical(message);
        logger->flush();
        written.set_value();
      }
    }).detach();
  } catch (const std::system_error&) {
    // The line is written below.
  }
  if (done.wait_for(std::chrono::seconds(2)) != std::future_status::ready) {
    const std::string line = message + "\n";
    [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, line.data(), line.size());
  }
  std::_Exit(static_cast<int>(ExitCode::internal));
}
}  // namespace

WatchedErrors::WatchedErrors(std::function<void()> look) : look_(std::move(look)) {
  const std::lock_guard lock(watched_mutex);
  watched().push_back(&look_);
}

WatchedErrors::~WatchedErrors() {
  const std::lock_guard lock(watched_mutex);
  std::erase(watched(), &look_);
}

HangWatchdog::HangWatchdog(const PhaseClock& clock,
                           std::function<void(const PhaseClock::Reading&)> on_hang)
    : clock_(clock),
      on_hang_(on_hang ? std::move(on_hang) : end_process),
      thread_([this] { watch(); }) {}

HangWatchdog::~HangWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void HangWatchdog::watch() {
  double wait_seconds = poll_seconds(0.02);
  double frozen_seconds = 0;
  double last_age = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto before = std::chrono::steady_clock::now();
    if (wake_.wait_for(lock, std::chrono::duration<double>(wait_seconds),
                       [this] { return stopping_; })) {
      return;
    }
    const double slept =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
    look_for_errors();
    PhaseClock::Reading reading = clock_.read();
    if (reading.age_seconds < last_age) {
      frozen_seconds = 0;  // Progress since then.
    }
    last_age = reading.age_seconds;
    // A watchdog that overslept was suspended with the whole process; that time is not a hang.
    frozen_seconds += slept > wait_seconds + 1.0 ? slept - wait_seconds : 0;
    reading.age_seconds = std::max(0.0, reading.age_seconds - frozen_seconds);
    if (reading.deadline_seconds > 0 && reading.age_seconds > reading.limit_seconds()) {
      lock.unlock();
      on_hang_(reading);
      return;
    }
    wait_seconds = poll_seconds(reading.deadline_seconds);
  }
}

}  // namespace jforge
