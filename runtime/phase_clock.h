#pragma once

/// What a rank's main thread is doing, and since when it shows no progress. Watchdogs and
/// heartbeats read it. Code of any layer shows progress by note_progress(), which costs nothing
/// where no clock listens.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace jforge {

/// Written by the thread whose work it tells of, read by any.
class PhaseClock {
 public:
  struct Reading {
    std::string owner;  ///< "rank 3 (HOST, pid P)", or "this process".
    std::string phase;
    std::int64_t step = 0;
    std::uint64_t progress = 0;
    double age_seconds = 0;       ///< Since the last sign of progress.
    double deadline_seconds = 0;  ///< For `age_seconds`; 0: none.
    bool waiting = false;         ///< For other ranks (WaitingForOthers).
    std::int64_t tokens = 0;      ///< What count() said last in this phase.
    std::int64_t forwards = 0;

    /// What a watchdog allows: a rank that waits is patient for twice as long, so that the rank
    /// that it waits for is blamed first.
    [[nodiscard]] double limit_seconds() const {
      return deadline_seconds * (waiting ? kWaitingPatience : 1);
    }
  };
  static constexpr double kWaitingPatience = 2;

  PhaseClock() = default;
  ~PhaseClock();
  PhaseClock(const PhaseClock&) = delete;
  PhaseClock& operator=(const PhaseClock&) = delete;

  /// From now on note_progress() and WaitingForOthers on the calling thread speak to this clock.
  void follow_this_thread() noexcept;

  /// Whose clock it is, for messages.
  void set_owner(std::string owner);
  /// The deadline, between two signs of progress, of phases that name none (0 = none).
  void set_deadline(double seconds);
  /// Enters a named phase, with set_deadline()'s deadline. A place for faults: "phase NAME".
  void enter(const std::string& phase);
  /// With a deadline of its own (0 = none).
  void enter(const std::string& phase, double deadline_seconds);
  /// A sign of progress: resets the age. Cheap.
  void progress(std::int64_t step);
  void progress() noexcept;
  /// How much this phase has made so far, for displays; enter() sets both to 0.
  void count(std::int64_t tokens, std::int64_t forwards) noexcept;
  /// Another rank has shown progress: while this one waits, its age begins anew. Any thread.
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

/// A sign of progress of the calling thread, to the clock that follows it, if any.
void note_progress() noexcept;

/// While it lives note_progress() of the calling thread says nothing: for what shows the job's
/// progress to others, and is none.
class NoSignsOfProgress {
 public:
  NoSignsOfProgress() noexcept;
  ~NoSignsOfProgress();
  NoSignsOfProgress(const NoSignsOfProgress&) = delete;
  NoSignsOfProgress& operator=(const NoSignsOfProgress&) = delete;

 private:
  PhaseClock* followed_;
};

/// While it lives the calling thread does nothing but wait for other ranks: in a collective, for a
/// lease. What the others do counts as its progress. Both ends are progress of its own, but not
/// those of a wait inside another.
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
