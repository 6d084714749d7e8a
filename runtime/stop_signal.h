#pragma once

/// SIGUSR2, SIGTERM and SIGINT set a flag and nothing else; SIGPIPE and SIGXFSZ are ignored so that
/// a closed pipe or a full disk comes back as an error code. SIGBUS: runtime/file_mapping.h.

namespace jforge {

/// Installs the handlers. A second SIGINT or SIGTERM ends the process at once (the last commit is
/// intact).
void install_signal_handlers();
/// Whether a stop was asked for on this rank.
[[nodiscard]] bool stop_requested() noexcept;
/// Sets the flag by program (a stop order from the coordinator; tests).
void request_stop() noexcept;
/// For tests.
void clear_stop_request() noexcept;

}  // namespace jforge
