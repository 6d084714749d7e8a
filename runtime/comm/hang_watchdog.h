#pragma once

/// Finds ranks that hang. Every rank says what it is doing in its `PhaseClock`; a thread without
/// MPI calls ends the process when a named phase shows no progress for longer than its deadline.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "runtime/phase_clock.h"

namespace jforge {

/// A place where errors come up beside the program's calls, for as long as the object lives: `look`
/// is called by every watchdog's thread at each of its looks, at least every quarter of a second.
/// It must neither throw nor block.
class WatchedErrors {
 public:
  explicit WatchedErrors(std::function<void()> look);
  ~WatchedErrors();
  WatchedErrors(const WatchedErrors&) = delete;
  WatchedErrors& operator=(const WatchedErrors&) = delete;

 private:
  std::function<void()> look_;
};

/// Polls a PhaseClock; when the age passes Reading::limit_seconds() it calls `on_hang` once
/// (default: log rank, phase, step and age, then _Exit(70), which makes mpirun end the other
/// ranks).
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
