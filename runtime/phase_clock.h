#pragma once

/// Records what a rank's main thread does and when it last progressed, for watchdogs and
/// heartbeats. Code of any layer calls note_progress(), which is free without a clock.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace jforge {

/// Written by the thread that it tracks, read by any.
class PhaseClock {
 public:
  struct Reading {
    std::string owner;  ///< "rank 3 (HOST, pid P)", or "this process".
    std::string phase;
    std::int64_t step = 0;
    std::uint64_t progress = 0;
    double age_seconds = 0;       ///< Since the last progress.
    double deadline_seconds = 0;  ///< Limit of age_seconds; 0: none.
    bool waiting = false;         ///< For other ranks (WaitingForOthers).
    std::int64_t tokens = 0;      ///< Last count() in this phase.
    std::int64_t forwards = 0;

    /// A waiting rank gets twice the time, so that the rank that it waits for is reported first.
    [[nodiscard]] double limit_seconds() const {
      return deadline_seconds * (waiting ? kWaitingPatience : 1);
    }
  };
  static constexpr double kWaitingPatience = 2;

  PhaseClock() = default;
  ~PhaseClock();
  PhaseClock(const PhaseClock&) = delete;
  PhaseClock& operator=(const PhaseClock&) = delete;

  /// Makes note_progress() and WaitingForOthers on the calling thread use this clock.
  void follow_this_thread() noexcept;

  void set_owner(std::string owner);
  /// Deadline between signs of progress for phases without their own; 0: none.
  void set_deadline(double seconds);
  /// Enters a phase with the default deadline. Fault place: "phase NAME".
  void enter(const std::string& phase);
  /// With its own deadline (0: none).
  void enter(const std::string& phase, double deadline_seconds);
  /// Resets the age. Cheap.
  void progress(std::int64_t step);
  void progress() noexcept;
  /// Output of this phase so far, for displays; enter() resets it.
  void count(std::int64_t tokens, std::int64_t forwards) noexcept;
  /// Resets the age while this rank waits, because another rank progressed. Thread-safe.
  void others_progressed() noexcept;
  [[nodiscard]] Reading read() const;

 private:
  friend class WaitingForOthers;
  void touch() noexcept;

  mutable std::mutex mutex_;
  std::string owner_ = "this process";
  std::string phase_ = "start";
  double default_deadline_seconds_ = 0;
  double deadline_seconds_ = 0;
  std::atomic<std::int64_t> step_{0};
  std::atomic<std::int64_t> tokens_{0};
  std::atomic<std::int64_t> forwards_{0};
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<std::int64_t> last_nanoseconds_{0};  // monotonic; 0 = not started
  std::atomic<int> waiting_{0};
};

/// Reports progress to the calling thread's clock, if any.
void note_progress() noexcept;

/// Suppresses note_progress() on the calling thread, for displays of progress.
class NoSignsOfProgress {
 public:
  NoSignsOfProgress() noexcept;
  ~NoSignsOfProgress();
  NoSignsOfProgress(const NoSignsOfProgress&) = delete;
  NoSignsOfProgress& operator=(const NoSignsOfProgress&) = delete;

 private:
  PhaseClock* followed_;
};

/// Marks that the calling thread only waits for other ranks (collective, lease), whose progress
/// then counts as its own. Both ends of the outermost wait are progress.
class WaitingForOthers {
 public:
  WaitingForOthers() noexcept;
  ~WaitingForOthers();
  WaitingForOthers(const WaitingForOthers&) = delete;
  WaitingForOthers& operator=(const WaitingForOthers&) = delete;

 private:
  PhaseClock* clock_;
};

}  // namespace jforge
