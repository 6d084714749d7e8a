#pragma once

/// What Python does with text. All texts are well-formed UTF-8; characters are code points.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace jforge::jinja {

enum class Side { left, right, both };
/// str.strip() and its kin without an argument, and with the characters that are taken off.
std::string_view strip(std::string_view text, Side side);
std::string_view strip(std::string_view text, Side side, std::string_view characters);

/// Number of characters.
std::int64_t length(std::string_view text);
/// Where the character stands that comes `count` after the one at `at`. Requires: there are as
/// many.
std::size_t advanced(std::string_view text, std::size_t at, std::int64_t count);
std::string reversed(std::string_view text);

/// Where `part` begins, npos if it is nowhere. In linear time, whatever the texts.
std::size_t find_text(std::string_view text, std::string_view part, std::size_t from = 0);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// str.capitalize() and str.title().
std::string capitalized(std::string_view text);
std::string titled(std::string_view text);
/// jinja2's filter `title`, which differs from str.title().
std::string titled_by_filter(std::string_view text);

/// str.splitlines().
std::vector<std::string_view> split_lines(std::string_view text);
/// str.split() and str.rsplit() at a separator, which is not empty; at most `most` splits unless
/// that is negative.
std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    std::int64_t most, bool from_right);
/// str.replace() of what is not empty.
std::string replaced(std::string_view text, std::string_view old, std::string_view by);

}  // namespace jforge::jinja
