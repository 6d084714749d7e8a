#pragma once

/// Finds ranks that hang. Every rank says what it is doing in `PhaseClock`; a thread without MPI
/// calls ends the process when a named phase outlives its deadline.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace jforge {

/// What the rank is doing right now. Written by the worker, read by watchdog and control threads.
class PhaseClock {
 public:
  struct Reading {
    std::string phase;
    std::int64_t step = 0;
    std::uint64_t progress = 0;
    double age_seconds = 0;       ///< Since the last sign of progress.
    double deadline_seconds = 0;  ///< 0: none.
  };
  /// Enters a named phase with a deadline for the time between two signs of progress (0 = none).
  void enter(const std::string& phase, double deadline_seconds);
  /// A sign of progress: resets the age. Cheap.
  void progress(std::int64_t step = 0);
  [[nodiscard]] Reading read() const;

 private:
  mutable std::mutex mutex_;
  std::string phase_ = "start";
  double deadline_seconds_ = 0;
  std::atomic<std::int64_t> step_{0};
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<std::int64_t> last_nanoseconds_{0};  // monotonic; 0 = not started
};

/// Polls a PhaseClock; when the age passes the deadline it calls `on_hang` once (default: log the
/// phase, step and age, then _Exit(70), which makes mpirun end the other ranks).
class HangWatchdog {
 public:
  explicit HangWatchdog(const PhaseClock& clock,
                        std::function<void(const PhaseClock::Reading&)> on_hang = {});
  ~HangWatchdog();
  HangWatchdog(const HangWatchdog&) = delete;
  HangWatchdog& operator=(const HangWatchdog&) = delete;

 private:
  void watch();

  const PhaseClock& clock_;
  std::function<void(const PhaseClock::Reading&)> on_hang_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace jforge
