#pragma once

/// Time during which this process ran: a suspension (SIGSTOP) must not count as another's silence.

#include <chrono>

namespace jforge {

/// Not thread-safe. Call seconds() at least once a second.
class AwakeClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  /// Longer gaps between calls count as this.
  static constexpr double kLongestGapSeconds = 1;

  explicit AwakeClock(TimePoint start = std::chrono::steady_clock::now()) : last_(start) {}
  /// Seconds since construction; never decreases.
  double seconds(TimePoint now = std::chrono::steady_clock::now());

 private:
  TimePoint last_;
  double seconds_ = 0;
};

}  // namespace jforge
