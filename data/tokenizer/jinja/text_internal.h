#pragma once

/// What Python does with text. All texts are well-formed UTF-8; characters are code points.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace jforge::jinja {

/// Python's str.isspace() of one character.
bool is_python_space(char32_t character);

enum class Side { left, right, both };
/// str.strip() and its kin without an argument, and with the characters that are taken off.
std::string_view strip(std::string_view text, Side side);
std::string_view strip(std::string_view text, Side side, std::string_view characters);

/// Number of characters.
std::int64_t length(std::string_view text);
/// Where each character begins, and the end.
std::vector<std::size_t> offsets(std::string_view text);

/// Where `part` begins, npos if it is nowhere. In linear time, whatever the texts.
std::size_t find_text(std::string_view text, std::string_view part, std::size_t from = 0);
/// The same from the right.
std::size_t find_last_text(std::string_view text, std::string_view part);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// str.capitalize() and str.title().
std::string capitalized(std::string_view text);
std::string titled(std::string_view text);
/// jinja2's filter of the name, which is another than str.title().
std::string titled_by_filter(std::string_view text);

/// str.split() and str.rsplit() without a separator, and str.splitlines(); at most `most` splits
/// where that is not negative.
std::vector<std::string_view> split_at_spaces(std::string_view text, std::int64_t most,
                                              bool from_right);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
/// The same with a separator, which is not empty.
std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    std::int64_t most, bool from_right);
/// str.replace(); a negative count replaces all.
std::string replaced(std::string_view text, std::string_view old, std::string_view by,
                     std::int64_t count);

/// Appends repr() of a string.
void append_quoted(std::string& out, std::string_view text);
/// Appends a string as json.dumps writes it.
void append_json(std::string& out, std::string_view text, bool ascii_only);

}  // namespace jforge::jinja
