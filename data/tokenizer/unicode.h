#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace jforge {

/// Returns the byte offset of the first ill-formed sequence (overlong forms, surrogates and code
/// points above U+10FFFF included), or nullopt.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

/// Throws DataError naming the byte offset if `text` is ill-formed; `what` names the text ("prompt
/// 12").
void require_valid_utf8(std::string_view text, std::string_view what);

/// Replaces every maximal ill-formed part by U+FFFD, as Python's errors="replace": an answer may be
/// cut within a character.
std::string replaced_utf8(std::string_view text);

/// Returns normalisation form C. Requires: well-formed UTF-8. Throws DataError from 2 GiB on.
std::string to_nfc(std::string_view text);

/// A code point and its length in bytes.
struct CodePoint {
  char32_t value;
  std::size_t length;
};
/// Returns the code point at `offset` < text.size(). Requires: well-formed UTF-8.
CodePoint code_point_at(std::string_view text, std::size_t offset);

void append_utf8(std::string& out, char32_t code_point);

bool is_white_space(char32_t code_point);

/// Returns the offset of the white space that ends `text`.
std::size_t trailing_white_space(std::string_view text);
/// Returns the bytes of white space that begin `text`.
std::size_t leading_white_space(std::string_view text);

}  // namespace jforge
