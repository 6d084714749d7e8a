#pragma once

/// Standard output and error, for people; results are in files.

#include <cstdio>
#include <string>
#include <string_view>

namespace jforge {

/// Opens /dev/null on closed descriptors 0 to 2, so that messages cannot go to a file or socket
/// that gets such a number. Call first in main.
void open_standard_streams() noexcept;

/// Writes and flushes, replacing an open bar on standard error. Ignores errors: the job goes on.
void tell(std::FILE* stream, std::string_view text) noexcept;

/// Draws a bar over the previous one on standard error; it stays open unless it is the `last`.
void tell_bar(const std::string& line, bool last);
void end_bar() noexcept;
/// Returns what erases the open bar; the caller must write it before other text. Thread-safe.
[[nodiscard]] std::string_view clear_bar() noexcept;

}  // namespace jforge
