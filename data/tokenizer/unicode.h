#pragma once

/// UTF-8 validation, Unicode white space and normalisation form C.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace jforge {

/// Byte offset of the first sequence that is not well-formed UTF-8 (overlong forms, surrogates and
/// code points above U+10FFFF included), or nothing when all of `text` is well-formed.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

/// Throws DataError naming the byte offset when `text` is not well-formed UTF-8; `what` names the
/// text in the message ("prompt 12").
void require_valid_utf8(std::string_view text, std::string_view what);

/// `text` with U+FFFD for every maximal part of it that is not well-formed, as transformers'
/// tokenizers and Python's errors="replace" have it: an answer may be cut within a character.
std::string replaced_utf8(std::string_view text);

/// Normalisation form C of well-formed UTF-8. Text of 2 GiB or more is a DataError.
std::string to_nfc(std::string_view text);

/// One code point of well-formed UTF-8 and its length in bytes.
struct CodePoint {
  char32_t value;
  std::size_t length;
};
/// The code point that starts at `offset` (< text.size()) of well-formed UTF-8.
CodePoint code_point_at(std::string_view text, std::size_t offset);

/// Appends the UTF-8 form of a Unicode scalar value.
void append_utf8(std::string& out, char32_t code_point);

/// Unicode property White_Space.
bool is_white_space(char32_t code_point);

/// Where the run of white space that ends `text` begins (text.size() if there is none).
std::size_t trailing_white_space(std::string_view text);
/// Length in bytes of the run of white space that begins `text`.
std::size_t leading_white_space(std::string_view text);

}  // namespace jforge
