#pragma once

/// GPT-2's spelling of bytes as printable characters, in which vocab.json, merges.txt and
/// tokenizer.json write their tokens: printable bytes stand for themselves, the 68 others for
/// U+0100, U+0101, … in order of byte value.

#include <optional>
#include <string>
#include <string_view>

namespace jforge {

/// Spells raw bytes for a vocabulary file (" a" becomes "Ġa").
std::string spell_bytes(std::string_view bytes);

/// The bytes that a spelled token stands for; nothing when it holds a character that spells no
/// byte. `token` is well-formed UTF-8.
std::optional<std::string> bytes_of_spelling(std::string_view token);

}  // namespace jforge
