#pragma once

/// Finds hung ranks: a thread without MPI calls ends the process if a phase of its `PhaseClock`
/// shows no progress for longer than its deadline.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "runtime/phase_clock.h"

namespace jforge {

/// Checks for asynchronous errors: while this object lives, every watchdog's thread calls `look` at
/// least every quarter of a second. `look` must neither throw nor block.
class WatchedErrors {
 public:
  explicit WatchedErrors(std::function<void()> look);
  ~WatchedErrors();
  WatchedErrors(const WatchedErrors&) = delete;
  WatchedErrors& operator=(const WatchedErrors&) = delete;

 private:
  std::function<void()> look_;
};

/// Calls `on_hang` once when the age exceeds Reading::limit_seconds(). By default logs rank, phase,
/// step and age and calls _Exit(70), which makes mpirun end the other ranks.
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
