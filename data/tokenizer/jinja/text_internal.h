#pragma once

/// Python's text functions on well-formed UTF-8; characters are code points.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace jforge::jinja {

enum class Side { left, right, both };
/// Apply str.strip(), str.lstrip() and str.rstrip().
std::string_view strip(std::string_view text, Side side);
std::string_view strip(std::string_view text, Side side, std::string_view characters);

std::int64_t length(std::string_view text);
/// Returns the offset `count` characters after `at`, which must exist.
std::size_t advanced(std::string_view text, std::size_t at, std::int64_t count);

/// Returns the offset or npos, in linear time.
std::size_t find_text(std::string_view text, std::string_view part, std::size_t from = 0);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalized(std::string_view text);
std::string titled(std::string_view text);

/// Makes at most `most` splits, unless negative. Requires: `separator` is not empty.
std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    std::int64_t most, bool from_right);
}  // namespace jforge::jinja
