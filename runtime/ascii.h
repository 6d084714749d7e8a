#pragma once

/// Character classes of ASCII, whatever the locale.

namespace jforge {

[[nodiscard]] constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace jforge
