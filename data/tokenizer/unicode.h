#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace jforge {

/// Returns the byte offset of the first ill-formed sequence, or nullopt.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

/// Throws DataError naming the byte offset and `what` ("prompt 12").
void require_valid_utf8(std::string_view text, std::string_view what);

/// Replaces ill-formed parts by U+FFFD, as Python's errors="replace": answers may be cut within a
/// character.
std::string replaced_utf8(std::string_view text);

/// Replaces in one pass. Requires: `old` is not empty.
std::string replaced(std::string_view text, std::string_view old, std::string_view by);

/// Returns normalisation form C. Requires: well-formed UTF-8. Throws DataError from 2 GiB on.
std::string to_nfc(std::string_view text);

struct CodePoint {
  char32_t value;
  std::size_t length;
};
/// Requires: well-formed UTF-8, `offset` < text.size().
CodePoint code_point_at(std::string_view text, std::size_t offset);

void append_utf8(std::string& out, char32_t code_point);

/// Returns where the white space at the end begins.
std::size_t trailing_white_space(std::string_view text);
/// Returns the bytes of white space at the start.
std::size_t leading_white_space(std::string_view text);

}  // namespace jforge
