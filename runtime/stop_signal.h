#pragma once

/// SIGUSR1, SIGUSR2, SIGTERM and SIGINT only set a flag. SIGPIPE and SIGXFSZ are ignored, so that a
/// closed pipe or a full disk gives an error code. SIGBUS: runtime/file_mapping.h.

namespace jforge {

/// A second SIGINT or SIGTERM ends the process at once; the last commit stays intact.
void install_signal_handlers();
/// A job is to be over so long before request_stop_at()'s time, with what it still writes.
inline constexpr double kStopMarginSeconds = 30;
/// Whether this rank was asked to stop, or the time of request_stop_at() is at most
/// kStopMarginSeconds + `lead_seconds` away, which the caller needs to come to its end.
[[nodiscard]] bool stop_requested(double lead_seconds = 0) noexcept;
[[nodiscard]] double seconds_since_epoch() noexcept;
/// Makes stop_requested() true in time for `end` (seconds since the epoch), but not in the first
/// half of the time since `begin`, so that every start of a job gets on. Returns when a caller
/// without a lead will be told.
double request_stop_at(double end, double begin = seconds_since_epoch()) noexcept;
/// Seconds until kStopMarginSeconds before that end; infinite without one.
[[nodiscard]] double seconds_to_stop() noexcept;
/// Sets the flag without a signal (coordinator, tests).
void request_stop() noexcept;
/// For tests.
void clear_stop_request() noexcept;

}  // namespace jforge
