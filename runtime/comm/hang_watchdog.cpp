#include "runtime/comm/hang_watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <utility>

#include "runtime/error.h"
#include "runtime/log.h"

namespace jforge {

namespace {
std::int64_t monotonic_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// How long to sleep before the next look: a quarter of the deadline, between 5 and 250 ms.
double poll_seconds(double deadline_seconds) {
  return deadline_seconds > 0 ? std::clamp(deadline_seconds / 4, 0.005, 0.25) : 0.25;
}

[[noreturn]] void end_process(const PhaseClock::Reading& reading) {
  const std::string message = fmt::format(
      "hang: phase \"{}\" (step {}) shows no progress for {:.1f} s, its deadline is {:.1f} s; "
      "ending this "
      "process with code 70",
      reading.phase, reading.step, reading.age_seconds, reading.deadline_seconds);
  // The hung thread may hold the log's lock (a dead network disk): the log gets two seconds, the
  // exit comes anyway.
  std::promise<void> written;
  auto done = written.get_future();
  std::thread([&] {
    if (const auto logger = spdlog::default_logger()) {  // not after close_log()
      logger->critical(message);
      logger->flush();
      written.set_value();
    }
  }).detach();
  if (done.wait_for(std::chrono::seconds(2)) != std::future_status::ready) {
    const std::string line = message + "\n";
    [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, line.data(), line.size());
  }
  std::_Exit(static_cast<int>(ExitCode::internal));
}
}  // namespace

void PhaseClock::enter(const std::string& phase, double deadline_seconds) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
  deadline_seconds_ = deadline_seconds;
  progress();
}

void PhaseClock::progress(std::int64_t step) {
  step_.store(step, std::memory_order_relaxed);
  last_nanoseconds_.store(monotonic_nanoseconds(), std::memory_order_relaxed);
  progress_.fetch_add(1, std::memory_order_release);
}

PhaseClock::Reading PhaseClock::read() const {
  const std::lock_guard lock(mutex_);
  Reading reading;
  reading.phase = phase_;
  reading.deadline_seconds = deadline_seconds_;
  reading.progress = progress_.load(std::memory_order_acquire);
  reading.step = step_.load(std::memory_order_relaxed);
  const std::int64_t last = last_nanoseconds_.load(std::memory_order_relaxed);
  reading.age_seconds = last == 0 ? 0 : static_cast<double>(monotonic_nanoseconds() - last) * 1e-9;
  return reading;
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
  std::uint64_t last_progress = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    const std::int64_t before = monotonic_nanoseconds();
    if (wake_.wait_for(lock, std::chrono::duration<double>(wait_seconds),
                       [this] { return stopping_; })) {
      return;
    }
    const double slept = static_cast<double>(monotonic_nanoseconds() - before) * 1e-9;
    PhaseClock::Reading reading = clock_.read();
    if (reading.progress != last_progress) {
      last_progress = reading.progress;
      frozen_seconds = 0;
    }
    // A watchdog that overslept was frozen with the whole process (a suspended job): that time is
    // nobody's hang.
    frozen_seconds += slept > wait_seconds + 1.0 ? slept - wait_seconds : 0;
    reading.age_seconds = std::max(0.0, reading.age_seconds - frozen_seconds);
    if (reading.deadline_seconds > 0 && reading.age_seconds > reading.deadline_seconds) {
      lock.unlock();
      on_hang_(reading);
      return;
    }
    wait_seconds = poll_seconds(reading.deadline_seconds);
  }
}

}  // namespace jforge
