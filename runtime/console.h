#pragma once

/// Standard output and error of a job: told to people, and never what a job depends on. What counts
/// is in files.

#include <cstdio>
#include <string>
#include <string_view>

namespace jforge {

/// Opens /dev/null on those of the descriptors 0, 1 and 2 that are closed, so that no file or
/// socket gets such a number and with it what is told. First thing in main, with
/// install_signal_handlers(), which ignores SIGPIPE.
void open_standard_streams() noexcept;

/// Writes `text` to `stream` and flushes, on standard error in place of an open bar. Nobody may
/// listen any more (a closed pipe, `2>&-`, a terminal that is gone, a full disk behind a
/// redirection): then it is lost, and the job goes on.
void tell(std::FILE* stream, std::string_view text) noexcept;

/// Draws a bar on the last line of the terminal at standard error, over the one before; it stays
/// open, without a line feed, unless it is the `last`.
void tell_bar(const std::string& line, bool last);
/// Ends an open bar's line.
void end_bar() noexcept;
/// What clears the open bar away, or nothing: to be written before any other text, which this call
/// promises. Any thread.
[[nodiscard]] std::string_view clear_bar() noexcept;

}  // namespace jforge
