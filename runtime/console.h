#pragma once

/// Standard output and error, for people; results are in files.

#include <cstdio>
#include <string>
#include <string_view>

namespace jforge {

/// Opens /dev/null on closed descriptors among 0, 1 and 2, so that no file or socket gets such a
/// number and the messages with it. Call first in main, with install_signal_handlers(), which
/// ignores SIGPIPE.
void open_standard_streams() noexcept;

/// Writes `text` to `stream` and flushes; on standard error replaces an open bar. Ignores errors
/// such as a closed pipe or a full disk, so that the job goes on.
void tell(std::FILE* stream, std::string_view text) noexcept;

/// Draws a bar over the previous one on standard error. It stays open, without a line feed, unless
/// it is the `last`.
void tell_bar(const std::string& line, bool last);
/// Ends an open bar's line.
void end_bar() noexcept;
/// Returns the text that erases the open bar, or nothing. The caller must write it before any other
/// text. Thread-safe.
[[nodiscard]] std::string_view clear_bar() noexcept;

}  // namespace jforge
