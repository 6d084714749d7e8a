#pragma once

/// SIGUSR2, SIGTERM and SIGINT only set a flag. SIGPIPE and SIGXFSZ are ignored, so that a closed
/// pipe or a full disk gives an error code. SIGBUS: runtime/file_mapping.h.

namespace jforge {

/// A second SIGINT or SIGTERM ends the process at once; the last commit stays intact.
void install_signal_handlers();
/// Whether this rank was asked to stop.
[[nodiscard]] bool stop_requested() noexcept;
/// Sets the flag without a signal (coordinator, tests).
void request_stop() noexcept;
/// For tests.
void clear_stop_request() noexcept;

}  // namespace jforge
